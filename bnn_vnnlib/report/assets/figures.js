// What the plots show: traces and axes, from the rows that the filter lets through.
const FEW = 500; // up to so many intervals get a symbol beside their colour
const SERIES = ["unsat", "sat", "error", "timeout", "unknown"];
const LINES = ["solid", "dash", "dot", "dashdot", "longdash"];
const css = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
const picked = (id) => document.getElementById(id).value;
const finite = (pair) => pair && pair.every((value) => Number.isFinite(Number(value)));
const least = (value) => Math.max(value, 1e-3); // for logarithms

/** Lines of text for a hover, where Plotly reads tags and entities. */
const hover = (texts) =>
  texts
    .map((line) => line.slice(0, 160).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;"))
    .join("<br>");

/** Rows by verdict, in the order of the legend. */
const byVerdict = (rows) =>
  VERDICTS.map((word) => [word, rows.filter((row) => text("verdict", row) === word)]).filter(([, some]) => some.length);

/** The same, certain bounds apart from those with a confidence: [word, statistical, rows]. */
const byGuarantee = (rows) =>
  byVerdict(rows)
    .flatMap(([word, some]) =>
      [false, true].map((kind) => [word, kind, some.filter((row) => statistical(row) === kind)]),
    )
    .filter(([, , some]) => some.length);

/** Intervals as one line a verdict: a cap, the interval, a cap. Ten thousand of them are one path, which is fast. */
function intervals(rows, pair, axis) {
  const drawn = rows
    .filter((row) => finite(pair(row)))
    .sort((a, b) => pair(a)[0] - pair(b)[0] || pair(a)[1] - pair(b)[1]);
  const rank = new Map(drawn.map((row, place) => [row, place + 1]));
  const traces = byGuarantee(drawn).map(([word, drawnNetworks, some]) => {
    const marks = drawn.length <= FEW;
    const symbol = drawnNetworks ? "cross-thin-open" : SYMBOLS[word];
    const trace = {
      name: drawnNetworks ? `${word}, statistical` : word,
      mode: marks ? "lines+markers" : "lines",
      x: [],
      y: [],
      text: [],
      customdata: [],
      line: { color: css(word), width: marks ? 2 : 1, simplify: false, dash: drawnNetworks ? "dot" : "solid" },
      marker: { symbol, color: css(word), size: marks ? some.flatMap(() => [0, 0, 7, 0, 0, 0, 0]) : 0 },
      cliponaxis: !marks,
    };
    for (const row of some) {
      const at = rank.get(row);
      const [low, high] = pair(row).map(Number);
      trace.x.push(at - 0.35, at + 0.35, at, at, at - 0.35, at + 0.35, null);
      trace.y.push(low, low, low, high, high, high, null);
      const said = hover(lines(row));
      trace.text.push(said, said, said, said, said, said, "");
      trace.customdata.push(row, row, row, row, row, row, null);
    }
    return trace;
  });
  const missing = rows.length - drawn.length;
  return {
    traces,
    count: drawn.length,
    missing,
    layout: {
      xaxis: {
        title: { text: "instances, ordered" },
        range: [0, drawn.length + 1],
        ...whole(drawn.length),
      },
      yaxis: { title: { text: axis } },
    },
  };
}

/** Points by verdict. */
function points(rows, x, y, layout, missing) {
  const traces = byVerdict(rows).map(([word, some]) => ({
    name: word,
    mode: "markers",
    cliponaxis: false,
    x: some.map(x),
    y: some.map(y),
    text: some.map((row) => hover(lines(row))),
    customdata: some,
    marker: {
      color: css(word),
      symbol: SYMBOLS[word],
      size: rows.length > FEW ? 6 : 9,
      opacity: rows.length > FEW ? 0.7 : 1,
    },
  }));
  return { traces, count: rows.length, missing, layout };
}

/** An axis of counts: a tick at each whole number, as long as there are few. */
const whole = (count) => ({ tickformat: ",d", ...(count <= 12 ? { dtick: 1 } : {}) });

/** An axis of times: logarithmic where they differ by more than a factor of 10, else from 0, so that it has ticks. */
function seconds(values) {
  const title = { title: { text: "seconds" }, tickformat: ".3~g" };
  const [low, high] = values.reduce(([a, b], one) => [Math.min(a, one), Math.max(b, one)], [Infinity, 0]);
  return high > 10 * low ? { ...title, type: "log", dtick: "D2" } : { ...title, rangemode: "tozero" };
}

function drawSafe() {
  const rows = visible.filter(safe);
  const plot = intervals(rows, safe, "P_safe");
  plot.layout.yaxis.range = [-0.03, 1.03];
  return plot;
}

function drawDecision() {
  const output = Number(picked("decision-output"));
  const rows = visible.filter((row) => decision(row) && output < decision(row)[0].length);
  return intervals(rows, (row) => [decision(row)[0][output], decision(row)[1][output]], `D, output ${output}`);
}

function drawCactus() {
  const groups = new Map();
  for (const row of visible.filter(solved)) {
    const name = [...(several ? [text("run", row)] : []), text("query", row) || "query not known"].join(", ");
    groups.set(name, [...(groups.get(name) ?? []), row]);
  }
  const traces = [...groups].map(([name, rows], index) => {
    rows.sort((a, b) => number("seconds", a) - number("seconds", b));
    return {
      name: hover([name]),
      mode: visible.length > FEW ? "lines" : "lines+markers",
      x: rows.map((_, place) => place + 1),
      y: rows.map((row) => least(number("seconds", row))),
      text: rows.map((row) => hover(lines(row))),
      customdata: rows,
      line: { shape: "hv", color: css(SERIES[index % 5]), dash: LINES[index % 5] },
      marker: { symbol: Object.values(SYMBOLS)[index % 5], size: 6 },
    };
  });
  const count = traces.reduce((total, trace) => total + trace.x.length, 0);
  return {
    traces,
    count,
    missing: visible.length - count,
    why: "have no sat or unsat",
    layout: {
      xaxis: { title: { text: "instances solved" }, ...whole(count) },
      yaxis: seconds(traces.flatMap((trace) => trace.y)),
    },
  };
}

function drawGap() {
  const bounded = picked("gap-of") === "P_safe" ? safe : (row) => decision(row) && !safe(row);
  const rows = visible.filter(bounded);
  const drawn = rows.filter((row) => number("gap", row) !== null);
  const layout = {
    xaxis: seconds(drawn.map((row) => least(number("seconds", row)))),
    yaxis: { title: { text: `width of the bounds on ${picked("gap-of")}` }, rangemode: "tozero", tickformat: ".3~g" },
  };
  return points(
    drawn,
    (row) => least(number("seconds", row)),
    (row) => number("gap", row),
    layout,
    rows.length - drawn.length,
  );
}

const VALUES = {
  seconds: [(row) => least(number("seconds", row)), null],
  "P_safe, lower bound": [(row) => safe(row)?.[0] ?? null, { range: [-0.03, 1.03] }],
  "P_safe, upper bound": [(row) => safe(row)?.[1] ?? null, { range: [-0.03, 1.03] }],
  gap: [(row) => number("gap", row), { tickformat: ".3~g" }],
};
const OUTCOMES = {
  "same verdict": ["unsat", "circle"],
  "one sat, one unsat": ["sat", "x"],
  "only across": ["timeout", "triangle-right"],
  "only up": ["error", "triangle-up"],
  "no verdict": ["unknown", "square-open"],
};

function outcome(across, up) {
  if (solved(across) && solved(up))
    return text("verdict", across) === text("verdict", up) ? "same verdict" : "one sat, one unsat";
  if (solved(across) || solved(up)) return solved(across) ? "only across" : "only up";
  return "no verdict";
}

function drawAgainst() {
  const [first, second, what] = ["against-x", "against-y", "against-what"].map(picked);
  const rows = passing("run");
  const inFirst = new Map(rows.filter((row) => text("run", row) === first).map((row) => [number("key", row), row]));
  const value = VALUES[what][0];
  const pairs = rows
    .filter((row) => text("run", row) === second && inFirst.has(number("key", row)))
    .map((row) => [inFirst.get(number("key", row)), row]);
  const drawn = pairs.filter(([across, up]) => value(across) !== null && value(up) !== null);
  const traces = Object.entries(OUTCOMES)
    .map(([name, [color, symbol]]) => {
      const some = drawn.filter(([across, up]) => outcome(across, up) === name);
      return {
        name,
        mode: "markers",
        x: some.map(([across]) => value(across)),
        y: some.map(([, up]) => value(up)),
        customdata: some.map(([, up]) => up),
        text: some.map(([across, up]) =>
          hover([
            ...lines(up),
            `beside it, ${first}: ${text("verdict", across)}, ${number("seconds", across)} s ${interval(safe(across))}`,
          ]),
        ),
        marker: { color: css(color), symbol, size: drawn.length > FEW ? 6 : 9, opacity: 0.8 },
      };
    })
    .filter((trace) => trace.x.length);
  const values = drawn.flatMap(([across, up]) => [value(across), value(up)]);
  const axis = VALUES[what][1] ?? { ...seconds(values), rangemode: "normal" };
  const ends = values.length
    ? values.reduce(([low, high], one) => [Math.min(low, one), Math.max(high, one)], [Infinity, -Infinity])
    : [0, 1];
  const [low, high] = ends.map(axis.type === "log" ? Math.log10 : Number);
  const range = axis.range ?? [low - 0.05 * (high - low || 1), high + 0.05 * (high - low || 1)];
  const line = {
    x: ends,
    y: ends,
    mode: "lines",
    line: { color: css("faint"), width: 1, dash: "dot" },
    hoverinfo: "skip",
    showlegend: false,
    customdata: [null, null],
  };
  const titled = (run) => ({ ...axis, range, title: { text: hover([`${what}: ${run}`]) } });
  return {
    traces: drawn.length ? [line, ...traces] : [],
    count: drawn.length,
    missing: pairs.length - drawn.length,
    layout: { xaxis: titled(first), yaxis: titled(second) },
  };
}
