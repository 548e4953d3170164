// The instances: sorted by any column, a page at a time, because a browser is slow with ten thousand rows of a table.
const PAGE = 50;
const PRINTED = 1000;
const COLUMNS = [
  ...(several ? [["Run", (row) => text("run", row)]] : []),
  ["Benchmark", (row) => text("category", row)],
  ["Network", (row) => text("network", row)],
  ["Property", (row) => text("property", row)],
  ["Query", (row) => text("query", row)],
  ["Verdict", (row) => text("verdict", row) + (text("vacuous", row) ? " (vacuous)" : "")],
  ["P_safe", (row) => interval(safe(row)), (row) => (safe(row) ? safe(row)[0] : null)],
  ["D", (row) => decisionText(row, 2), (row) => (decision(row) ? Number(decision(row)[0][0]) : null)],
  ["Gap", (row) => number("gap", row) ?? "", (row) => number("gap", row)],
  ["Seconds", (row) => number("seconds", row), (row) => number("seconds", row)],
  ["Checked", (row) => text("checked", row)],
];
const used = COLUMNS.filter(([, shown]) => all.some((row) => shown(row) !== ""));
let order = null; // {column, up}
let page = 0;
let size = PAGE;

/** Visible rows in the order that was asked for; rows without a value come last either way. */
function sorted() {
  if (!order) return visible;
  const [, shown, value] = order.column;
  const keyed = visible.map((row) => [value ? value(row) : shown(row), row]);
  const side = order.up ? 1 : -1;
  const compare = value ? (a, b) => a - b : new Intl.Collator("en", { numeric: true }).compare;
  const missing = (key) => key === null || key === "";
  keyed.sort(([a], [b]) => (missing(a) || missing(b) ? missing(a) - missing(b) : side * compare(a, b)));
  return keyed.map(([, row]) => row);
}

function headCell(column) {
  const [name, , value] = column;
  const is = order && order.column === column;
  const button = make(
    "button",
    {
      type: "button",
      "data-column": name,
      onclick: () => {
        order = { column, up: is ? !order.up : true };
        page = 0;
        showTable();
        document.querySelector(`#list button[data-column="${name}"]`).focus();
      },
    },
    `${name}${is ? (order.up ? " \u25b2" : " \u25bc") : ""}`,
  );
  const sort = is ? (order.up ? "ascending" : "descending") : "none";
  return make(
    "th",
    { scope: "col", "aria-sort": sort, class: value && name !== "D" && name !== "P_safe" ? "number" : null },
    button,
  );
}

function bodyCell([name, shown], row) {
  const value = String(shown(row));
  const content =
    name === "Property"
      ? make(
          "button",
          { type: "button", class: "name", "data-row": row, onclick: () => openDetail(row) },
          value || "(no name)",
        )
      : make("span", {}, value);
  const kind =
    {
      Property: "long property",
      Network: "long",
      Benchmark: "long",
      Run: "long",
      Verdict: `verdict ${value.split(" ")[0]}`,
      Gap: "number",
      Seconds: "number",
    }[name] ?? "";
  return make("td", { "data-label": name, class: `${kind}${value === "" ? " nothing" : ""}` }, content);
}

function pager(rows) {
  const last = Math.max(0, Math.ceil(rows.length / size) - 1);
  const go = (where, label, focus) =>
    make(
      "button",
      {
        type: "button",
        class: focus,
        disabled: where < 0 || where > last || where === page,
        onclick: () => {
          page = where;
          showTable();
          const again = document.querySelector(`#list .${focus}`);
          (again.disabled ? document.querySelector("#list .place") : again).focus();
        },
      },
      label,
    );
  const place = make(
    "span",
    { class: "place", tabindex: "-1", "aria-live": "polite" },
    rows.length
      ? `${page * size + 1} to ${Math.min(rows.length, (page + 1) * size)} of ${rows.length}`
      : "No instance passes the filter.",
  );
  return make(
    "div",
    { class: "pages" },
    go(0, "First", "first"),
    go(page - 1, "Previous", "previous"),
    place,
    go(page + 1, "Next", "next"),
    go(last, "Last", "last"),
  );
}

function showTable() {
  const rows = sorted();
  const body = make(
    "tbody",
    {},
    ...rows
      .slice(page * size, (page + 1) * size)
      .map((row) => make("tr", {}, ...used.map((column) => bodyCell(column, row)))),
  );
  const table = make("table", { class: "list" }, make("thead", {}, make("tr", {}, ...used.map(headCell))), body);
  const region = make("div", { class: "scroll", role: "region", "aria-label": "Instances", tabindex: "0" }, table);
  document.getElementById("list").replaceChildren(pager(rows), region);
}

listeners.push(() => {
  page = 0;
  showTable();
});
addEventListener("beforeprint", () => {
  size = PRINTED;
  page = 0;
  showTable();
});
addEventListener("afterprint", () => {
  size = PAGE;
  showTable();
});
