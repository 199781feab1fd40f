// Small tools for the page's tree. Text of models and learners only ever becomes text nodes.

/** Makes an element: `el("p", {class: "hint", onclick: f}, "text", child, ...)`. */
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Returns a copy of a template's only element. */
export function fromTemplate(id) {
  return document.getElementById(id).content.firstElementChild.cloneNode(true);
}

/** Says something to screen readers. */
export function announce(text) {
  document.getElementById("live").textContent = text;
}

/** Shows a notice above the page; `buttons` are [label, what it does] pairs, each of which closes it. */
export function notice(text, { kind = "", buttons = [["Close", () => {}]] } = {}) {
  const box = el("div", { class: `notice ${kind}`, role: kind === "bad" ? "alert" : "status" }, el("p", {}, text));
  for (const [label, does] of buttons) {
    box.append(el("button", { type: "button", onclick: () => (box.remove(), does()) }, label));
  }
  document.getElementById("notices").append(box);
  return box;
}

/** Returns elements for a model's text: paragraphs, lists, headings and bold words, whatever else as it stands. */
export function prose(text) {
  const made = [];
  let list = null;
  let lines = [];
  const close = () => {
    if (lines.length) made.push(el("p", {}, ...bold(lines.join("\n"))));
    lines = [];
  };
  for (const line of text.split("\n")) {
    const item = line.match(/^\s*(?:([-*•])|(\d{1,3})[.)])\s+(.*)$/);
    const heading = line.match(/^#{1,6}\s+(.*)$/);
    if (item) {
      close();
      const kind = item[1] ? "UL" : "OL";
      if (list === null || list.tagName !== kind) {
        list = el(kind.toLowerCase(), item[2] && item[2] !== "1" ? { start: item[2] } : {});
        made.push(list);
      }
      list.append(el("li", {}, ...bold(item[3])));
      continue;
    }
    if (line.trim() === "") close();
    else if (heading) {
      close();
      made.push(el("p", { class: "heading" }, ...bold(heading[1])));
    } else lines.push(line);
    if (line.trim() !== "") list = null;
  }
  close();
  return made;
}

function bold(text) {
  return text.split(/(\*\*[^*\n]+\*\*)/).map((part) =>
    part.startsWith("**") && part.endsWith("**") && part.length > 4 ? el("strong", {}, part.slice(2, -2)) : part,
  );
}

/** Returns a time as people of this browser's language write it. */
export function when(seconds) {
  return new Date(seconds * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

/** A dialog with a title; closes by Escape, by its button, or by what `fill` is handed. */
export function pick(title, fill) {
  const dialog = fromTemplate("picker");
  dialog.querySelector("h2").textContent = title;
  const close = () => dialog.close();
  dialog.querySelector(".close").addEventListener("click", close);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  fill(dialog.querySelector(".picked"), close);
  dialog.showModal();
}
