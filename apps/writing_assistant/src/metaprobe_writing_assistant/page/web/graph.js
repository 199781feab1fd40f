// The argument graph, drawn by hand: a column a speaker, the learner below, arrows for attacks.
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 640;
const BOX = { width: 150, height: 52 };
const ROW = 110;
const TOP = 16;

function svg(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/**
 * Draws a grading. `marked`: number of the learner's node, deciding attacks, and nodes that changed.
 * `onShow` is called with the number of the argument that is chosen.
 */
export function drawGraph(grading, { learner = -1, deciding = [], changed = [] }, onShow) {
  const places = placesOf(grading.nodes, learner);
  const height = Math.max(...places.map((place) => place.y)) + BOX.height / 2 + 12;
  const title = `${grading.nodes.length} arguments and ${grading.attacks.length} attacks`;
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "group", "aria-label": title });
  drawing.append(svg("defs", {}, marker("arrow"), marker("arrow-deciding")));
  const decides = new Set(deciding.map(String));
  const pairs = new Set(grading.attacks.map(String));
  for (const [from, to] of grading.attacks) {
    const both = pairs.has(String([to, from]));
    drawing.append(arrow(places[from], places[to], both, decides.has(String([from, to]))));
  }
  grading.nodes.forEach((node, i) => drawing.append(box(node, i, places[i], changed.includes(i), i === learner, onShow)));
  return drawing;
}

/** Speakers side by side, each one's arguments downwards, the learner's in the middle below. */
function placesOf(nodes, learner) {
  const speakers = [...new Set(nodes.filter((_, i) => i !== learner).map((node) => node.speaker))];
  const rows = {};
  const gap = WIDTH / (speakers.length + 0.0);
  const places = nodes.map((node, i) => {
    if (i === learner) return null;
    const row = (rows[node.speaker] = (rows[node.speaker] ?? -1) + 1);
    return { x: gap * (speakers.indexOf(node.speaker) + 0.5), y: TOP + BOX.height / 2 + row * ROW };
  });
  const below = TOP + BOX.height / 2 + Math.max(...Object.values(rows), 0) * ROW + ROW;
  return places.map((place) => place ?? { x: WIDTH / 2, y: below });
}

function marker(id) {
  const shape = svg("path", { d: "M0 0 8 4 0 8z" });
  return svg("marker", { id, class: id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto" }, shape);
}

/** A curve from the edge of one box to that of the other; two that attack each other bend apart. */
function arrow(from, to, both, decides) {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const far = Math.abs(dy) > 1.5 * ROW; // past a box: through the middle of the drawing
  const bend = (both ? 26 : far ? 52 : 12) * (!both && dx > 0 && dy < 0 ? -1 : 1);
  const length = Math.hypot(dx, dy);
  const middle = { x: (from.x + to.x) / 2 - (dy / length) * bend, y: (from.y + to.y) / 2 + (dx / length) * bend };
  const start = edge(from, middle);
  const end = edge(to, middle);
  const path = svg("path", { d: `M${start.x} ${start.y}Q${middle.x} ${middle.y} ${end.x} ${end.y}` });
  path.setAttribute("class", decides ? "attack deciding" : "attack");
  path.setAttribute("marker-end", `url(#${decides ? "arrow-deciding" : "arrow"})`);
  return path;
}

/** Where the line from a box's middle to a point leaves the box. */
function edge(box, point) {
  const [dx, dy] = [point.x - box.x, point.y - box.y];
  const scale = Math.min(
    dx === 0 ? Infinity : (BOX.width / 2 + 3) / Math.abs(dx),
    dy === 0 ? Infinity : (BOX.height / 2 + 3) / Math.abs(dy),
  );
  return { x: (box.x + dx * scale).toFixed(1), y: (box.y + dy * scale).toFixed(1) };
}

function box(node, i, place, changed, learner, onShow) {
  const words = `Argument ${i + 1}, ${node.speaker}, ${node.standing ? "stands" : "does not stand"}`;
  const kinds = ["node", node.standing ? "standing" : "fallen", changed ? "changed" : "", learner ? "learner" : ""];
  const group = svg("g", { class: kinds.join(" ").trim(), tabindex: 0, role: "button", "aria-label": words });
  const level = node.level === null ? "no level" : `level ${node.level}`;
  group.append(
    svg("rect", { x: place.x - BOX.width / 2, y: place.y - BOX.height / 2, width: BOX.width, height: BOX.height, rx: 8 }),
    svg("text", { x: place.x, y: place.y - 4, class: "name" }, `${i + 1} ${node.speaker}`),
    svg("text", { x: place.x, y: place.y + 15, class: "level" }, `${level}, ${node.standing ? "stands" : "does not stand"}`),
  );
  group.addEventListener("click", () => onShow(i));
  group.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") event.preventDefault(), onShow(i);
  });
  return group;
}
