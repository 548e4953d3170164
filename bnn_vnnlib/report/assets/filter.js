// Which rows are shown. Everything that shows rows listens.
const FILTERS = ["run", "category", "network", "query", "verdict"].filter((name) =>
  document.getElementById(`filter-${name}`),
);
const listeners = [];
const chosen = Object.fromEntries(FILTERS.map((name) => [name, -2]));
let wanted = "";
let visible = all;

/** The rows that the filter lets through; `without` names a choice that is not to count. */
function passing(without = null) {
  const codes = FILTERS.filter((name) => name !== without && chosen[name] !== -2).map((name) => [
    data.texts[name].codes,
    chosen[name],
  ]);
  const named = wanted ? ["category", "network", "property", "reason"].map(matching) : null;
  return all.filter(
    (row) => codes.every(([codes_, code]) => codes_[row] === code) && (!named || named.some((one) => one(row))),
  );
}

/** Whether the text of a column contains what was typed; every distinct text is looked at once. */
function matching(name) {
  const { values, codes } = data.texts[name];
  const hits = values.map((value) => value.toLowerCase().includes(wanted));
  return (row) => codes[row] >= 0 && hits[codes[row]];
}

function changed() {
  visible = passing();
  document.getElementById("shown").textContent = `${visible.length} of ${data.rows} instances are shown.`;
  for (const listener of listeners) listener();
}

function fillFilter() {
  for (const name of FILTERS) {
    const select = document.getElementById(`filter-${name}`);
    const { values, codes } = data.texts[name];
    select.append(make("option", { value: -2 }, "all"));
    values.forEach((value, code) => select.append(make("option", { value: code }, value)));
    if (codes.includes(-1)) select.append(make("option", { value: -1 }, "not known"));
    select.addEventListener("change", () => {
      chosen[name] = Number(select.value);
      changed();
    });
  }
  let waiting = 0;
  const field = document.getElementById("filter-text");
  field.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      wanted = field.value.trim().toLowerCase();
      changed();
    }, 150);
  });
  const form = document.getElementById("filter");
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => {
    for (const name of FILTERS) chosen[name] = -2;
    wanted = "";
    setTimeout(changed);
  });
}
