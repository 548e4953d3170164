// One instance in full, and the pictures.
const GALLERY = 12;
let pictured = [];
let galleryShown = GALLERY;

const bytes = (packed) => Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));

/** Pixels (channel, row, column) on a canvas; a difference in blue and orange. */
function paint(packed, [channels, height, width], difference) {
  const values = bytes(packed);
  const canvas = make("canvas", { width, height, role: "img" });
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const area = height * width;
  for (let pixel = 0; pixel < area; pixel += 1) {
    const at = (channel) => values[Math.min(channel, channels - 1) * area + pixel];
    let color = [at(0), at(1), at(2)];
    if (difference) color = shade((channels === 3 ? (at(0) + at(1) + at(2)) / 3 : at(0)) / 127.5 - 1);
    image.data.set([...color, 255], pixel * 4);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** -1 blue, 0 white, 1 orange. */
function shade(value) {
  const end = value < 0 ? [0, 114, 178] : [213, 94, 0];
  return end.map((part) => 255 + Math.min(1, Math.abs(value)) * (part - 255));
}

function pictures(row) {
  const found = data.pictures[row];
  if (!found) return null;
  const parts = [
    ["input", "input"],
    ["witness", "witness X"],
    ["difference", "witness minus input"],
  ];
  const shown = parts
    .filter(([name]) => found[name])
    .map(([name, label]) => {
      const canvas = paint(found[name], found.shape, name === "difference");
      canvas.setAttribute("aria-label", `${label} of ${text("property", row)}`);
      const key = name === "difference" ? [colourKey(found.largest)] : [];
      return make("figure", {}, canvas, make("figcaption", {}, label, ...key));
    });
  return make("div", { class: "pictures" }, ...shown);
}

/** What the colours of a difference stand for: from blue, the largest decrease, to orange, the largest increase. */
function colourKey(largest) {
  const end = Number((largest ?? 0).toPrecision(3));
  const words = [`-${end}`, "0", `+${end}`].map((word) => make("span", {}, word));
  return make("span", { class: "key" }, make("span", { class: "colours" }), make("span", { class: "ends" }, ...words));
}

/** What was asked, and which class wins at the witness. */
function asked(row) {
  const said = text("violation", row) ? [`Asked: can this happen? ${text("violation", row)}`] : [];
  const largest = (data.more[row] ?? {}).largest;
  if (largest !== undefined) said.push(`At the witness, output ${largest} of Y is the largest.`);
  return said.map((line) => make("p", { class: "asked" }, line));
}

function showGallery() {
  pictured = visible
    .filter((row) => data.pictures[row])
    .sort((a, b) => Boolean(data.pictures[b].witness) - Boolean(data.pictures[a].witness));
  const cards = pictured
    .slice(0, galleryShown)
    .map((row) =>
      make(
        "div",
        {},
        make("button", { type: "button", class: "name", onclick: () => openDetail(row) }, text("property", row)),
        make(
          "p",
          {},
          make("span", { class: `verdict ${text("verdict", row)}` }, text("verdict", row)),
          ` ${interval(safe(row))}`,
        ),
        ...asked(row),
        pictures(row),
      ),
    );
  document
    .getElementById("gallery")
    .replaceChildren(...(cards.length ? cards : [make("p", {}, "None of the instances shown has pictures.")]));
  document.getElementById("more-pictures").hidden = pictured.length <= galleryShown;
}

function facts(row) {
  const more = data.more[row] ?? {};
  const pairs = [
    ["Run", text("run", row)],
    ["Benchmark", text("category", row)],
    ["Network", text("network", row)],
    ["Query", text("query", row)],
    ["So unsat means", text("unsat_means", row)],
    ["Vacuous", text("vacuous", row)],
    ["Rule", text("rule", row)],
    ["Thresholds", thresholds(row)],
    ["P_safe", interval(safe(row))],
    ["D, by output", decisionText(row, Infinity)],
    [
      "Seconds",
      `${number("seconds", row)}${number("timeout", row) === null ? "" : ` (limit ${number("timeout", row)})`}`,
    ],
    ["Method", text("method", row)],
    ["Details", (more.details ?? []).join("; ")],
    ["Notes", (more.notes ?? []).join("; ")],
    ["Reason", text("reason", row)],
    ["Why no verdict", (more.diagnosis ?? []).join("; ")],
    ["Witness shows", text("shows", row)],
    ["X", (more.x ?? []).join(", ")],
    ["Y", (more.y ?? []).join(", ")],
    ["Checked", text("checked", row)],
    ["Record", text("place", row)],
  ];
  return make(
    "dl",
    {},
    ...pairs
      .filter(([, value]) => value !== "")
      .flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]),
  );
}

function thresholds(row) {
  if (text("query", row) !== "probabilistic" || number("tau_safe", row) === null) return "";
  return `unsat from P_safe ${number("tau_safe", row)} on, sat below ${number("tau_unsafe", row)}`;
}

function openDetail(row) {
  const [says, open, how] = data.guarantees.values[data.guarantees.codes[row]];
  const dialog = document.getElementById("detail");
  const images = pictures(row);
  document
    .getElementById("detail-body")
    .replaceChildren(
      make("h2", { id: "detail-title" }, text("property", row)),
      make("p", {}, make("strong", { class: `verdict ${text("verdict", row)}` }, text("verdict", row)), ` ${says}`),
      ...asked(row),
      ...(open ? [make("p", {}, make("strong", {}, "Left open: "), open)] : []),
      ...(how ? [make("p", {}, how)] : []),
      ...(images ? [images] : []),
      facts(row),
      make("p", {}, make("button", { type: "button", onclick: () => dialog.close(), autofocus: true }, "Close")),
    );
  dialog.showModal();
  dialog.scrollTop = 0;
}

document.getElementById("more-pictures").addEventListener("click", () => {
  galleryShown += GALLERY;
  showGallery();
});
document.getElementById("detail").addEventListener("click", (event) => {
  if (event.target === event.currentTarget) event.currentTarget.close(); // the backdrop
});
listeners.push(() => {
  galleryShown = GALLERY;
  showGallery();
});
