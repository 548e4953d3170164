// The report's data: columns, one entry a row. Rows are known by their index everywhere.
const data = JSON.parse(document.getElementById("data").textContent);
const all = Array.from({ length: data.rows }, (_, row) => row);
const VERDICTS = ["unsat", "sat", "unknown", "timeout", "error"];
const SYMBOLS = { unsat: "circle", sat: "x", unknown: "square-open", timeout: "triangle-up-open", error: "diamond" };

const text = (name, row) => {
  const code = data.texts[name].codes[row];
  return code < 0 ? "" : data.texts[name].values[code];
};
const number = (name, row) => data.numbers[name][row];
const safe = (row) => data.bounds.p_safe[row];
const statistical = (row) => text("guarantee", row) === "statistical";
const decision = (row) => data.bounds.decision[row];
const several = data.texts.run.values.length > 1;
const solved = (row) => ["sat", "unsat"].includes(text("verdict", row));
const interval = (pair) => (pair ? `[${pair[0]}, ${pair[1]}]` : "");

/** The bounds on D, of the first few outputs. */
function decisionText(row, most) {
  const found = decision(row);
  if (!found) return "";
  const parts = found[0].slice(0, most).map((low, output) => interval([low, found[1][output]]));
  return parts.join(" ") + (found[0].length > most ? ` and ${found[0].length - most} more` : "");
}

/** An element; children are elements or text, which is never read as HTML. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Several lines on a row, for a hover. */
function lines(row) {
  const head = [text("category", row), text("network", row), text("property", row)];
  const facts = [`${text("verdict", row)} (${text("query", row) || "query not known"}), ${number("seconds", row)} s`];
  if (statistical(row)) facts.push(`statistical: confidence ${number("confidence", row)} over drawn networks`);
  if (safe(row)) facts.push(`P_safe ${interval(safe(row))}`);
  if (decision(row)) facts.push(`D ${decisionText(row, 3)}`);
  if (text("reason", row)) facts.push(text("reason", row));
  return [...(several ? [text("run", row)] : []), ...head, ...facts];
}
