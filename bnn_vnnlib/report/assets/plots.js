// The plots. Each is drawn when it comes into view, and again when the filter, a choice or the colours change.
const PLOTS = [
  { id: "plot-safe", here: () => all.some(safe), draw: drawSafe },
  { id: "plot-decision", here: () => all.some(decision), draw: drawDecision },
  { id: "plot-cactus", here: () => all.some(solved), draw: drawCactus },
  { id: "plot-gap", here: () => all.some((row) => number("gap", row) !== null), draw: drawGap },
  { id: "plot-against", here: () => several, draw: drawAgainst },
];

/** The run that shares most instances with the first. */
function fittest() {
  const keys = data.texts.run.values.map(
    (_, code) => new Set(all.filter((row) => data.texts.run.codes[row] === code).map((row) => number("key", row))),
  );
  const shared = keys.map((some, code) => (code ? [...some].filter((key) => keys[0].has(key)).length : -1));
  return shared.indexOf(Math.max(...shared));
}

function fill(id, values, start = 0) {
  const select = document.getElementById(id);
  select.append(...values.map((value) => make("option", { value }, String(value))));
  select.selectedIndex = Math.min(start, values.length - 1);
  select.addEventListener("change", redraw);
}

/** Texts, grid and margins that all plots have. */
function style(layout) {
  const axis = (own) => ({
    gridcolor: css("grid"),
    zerolinecolor: css("grid"),
    linecolor: css("line"),
    automargin: true,
    ...own,
  });
  return {
    ...layout,
    xaxis: axis(layout.xaxis),
    yaxis: axis(layout.yaxis),
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: css("ink"), family: "system-ui, sans-serif", size: 13 },
    margin: { l: 55, r: 10, t: 30, b: 50 },
    hovermode: "closest",
    showlegend: true,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    hoverlabel: { align: "left", bgcolor: css("panel"), bordercolor: css("line"), font: { color: css("ink") } },
  };
}

function draw(plot) {
  const figure = document.getElementById(plot.id);
  const canvas = figure.querySelector(".canvas");
  const { traces, count, missing, layout, why = "have no value that could be drawn" } = plot.draw();
  const full = traces.map((trace) => ({ type: "scatter", hovertemplate: "%{text}<extra></extra>", ...trace }));
  figure.querySelector(".state").textContent = `${count} shown${missing ? `; ${missing} ${why}` : ""}.`;
  canvas.hidden = count === 0;
  plot.stale = false;
  if (!count) return;
  const options = {
    displaylogo: false,
    displayModeBar: innerWidth < 720 ? false : "hover", // on a narrow page it would lie on the legend
    responsive: true,
    modeBarButtonsToRemove: ["select2d", "lasso2d"],
  };
  Plotly.react(canvas, full, style(layout), options);
  plot.stops = stops(full);
  plot.at = -1;
  if (plot.heard) return;
  plot.heard = true;
  canvas.on("plotly_click", ({ points: [hit] }) => {
    if (hit.customdata !== null) openDetail(hit.customdata);
  });
  canvas.addEventListener("keydown", (event) => walk(plot, canvas, event));
}

/** Where arrow keys stop: once a row and trace, from left to right. */
function stops(traces) {
  const found = traces.flatMap((trace, curve) => {
    const seen = new Set();
    return trace.customdata.flatMap((row, point) => {
      if (row === null || row === undefined || seen.has(row)) return [];
      seen.add(row);
      return [{ curve, point, row, x: trace.x[point] }];
    });
  });
  return found.sort((a, b) => a.x - b.x);
}

function walk(plot, canvas, event) {
  const last = plot.stops.length - 1;
  const moves = {
    ArrowRight: plot.at + 1,
    ArrowDown: plot.at + 1,
    ArrowLeft: plot.at - 1,
    ArrowUp: plot.at - 1,
    Home: 0,
    End: last,
  };
  const stop = plot.stops[plot.at];
  if (!(event.key in moves) && !(event.key === "Enter" && stop)) return;
  event.preventDefault(); // or the same Enter would press the button that the dialog focuses
  if (event.key === "Enter") {
    openDetail(stop.row);
    return;
  }
  plot.at = Math.max(0, Math.min(last, moves[event.key]));
  const { curve, point, row } = plot.stops[plot.at];
  Plotly.Fx.hover(canvas, [{ curveNumber: curve, pointNumber: point }]);
  document.getElementById(plot.id).querySelector(".spoken").textContent = lines(row).join(", ");
}

function redraw() {
  for (const plot of PLOTS.filter((one) => one.shown)) {
    plot.stale = true;
    if (plot.inView) draw(plot);
  }
}

function drawEverything() {
  for (const plot of PLOTS.filter((one) => one.shown && (one.stale ?? true))) draw(plot);
}

function startPlots() {
  if (typeof Plotly === "undefined") {
    document.getElementById("plots-missing").hidden = false;
    return;
  }
  const outputs = all.reduce((most, row) => Math.max(most, decision(row) ? decision(row)[0].length : 0), 0);
  fill(
    "decision-output",
    Array.from({ length: outputs }, (_, output) => output),
  );
  fill("gap-of", [
    ...(all.some(safe) ? ["P_safe"] : []),
    ...(all.some((row) => decision(row) && !safe(row)) ? ["D"] : []),
  ]);
  const runs = data.texts.run.values;
  fill("against-x", runs, 0);
  fill("against-y", runs, fittest());
  fill(
    "against-what",
    Object.keys(VALUES).filter((name) => (name.startsWith("P_safe") ? all.some(safe) : true)),
  );
  const watcher = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        const plot = PLOTS.find(({ id }) => id === entry.target.id);
        plot.inView = entry.isIntersecting;
        if (plot.inView && plot.stale) draw(plot);
      }
    },
    { rootMargin: "200px" },
  );
  for (const plot of PLOTS.filter((one) => one.here())) {
    Object.assign(plot, { shown: true, stale: true, inView: false });
    const figure = document.getElementById(plot.id);
    figure.hidden = false;
    watcher.observe(figure);
  }
  listeners.push(redraw);
}
