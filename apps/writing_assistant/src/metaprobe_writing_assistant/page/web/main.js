// Begins the page: what it is connected to, and its tabs.
import { ask } from "./api.js";
import { showArguing } from "./argue.js";
import { el, notice } from "./dom.js";
import { showStudy } from "./study.js";
import { showWriting } from "./writing.js";

const main = document.getElementById("main");
const tabs = document.getElementById("tabs");

async function begin() {
  const about = await ask("GET", "/api/about");
  document.body.classList.toggle("in-study", about.study);
  if (about.study) return showStudy(main);
  sayModels(about.models);
  const parts = [["Write", () => showWriting(main, about)]];
  if (about.arguing) parts.push(["Argue about a grade", () => showArguing(main, about)]);
  for (const [title, show] of parts) {
    const button = el("button", { type: "button", onclick: () => choose(button, show) }, title);
    if (parts.length > 1) tabs.append(button);
  }
  tabs.firstElementChild?.setAttribute("aria-current", "page");
  return showWriting(main, about);
}

async function choose(button, show) {
  for (const one of tabs.children) one.removeAttribute("aria-current");
  button.setAttribute("aria-current", "page");
  await show().catch(sayWrong);
}

function sayModels(models) {
  const weak = models.filter((model) => model.weak);
  const places = [...new Set(models.map((model) => model.place).filter(Boolean))];
  const stays = models.every((model) => !model.place);
  const where = stays
    ? "Texts stay on this machine."
    : `Texts are kept on this machine, and sent to ${places.join(" and ")} to be answered.`;
  const who = models.map((model) => (models.length > 1 ? `${model.part}: ${model.name}` : model.name)).join(", ");
  document.querySelector("header").append(el("p", { class: "where" }, `${who}. ${where}`));
  if (weak.length) {
    notice(
      `The model ${weak[0].name} is far too small to teach writing: its advice is often wrong. It shows how the page ` +
        "works. For real help, start the program with a stronger model: metaprobe assist --llm openai:MODEL@URL",
      { kind: "weak" },
    );
  }
}

function sayWrong(error) {
  main.replaceChildren(
    el("p", { class: "problem", role: "alert" }, error.message),
    el("button", { type: "button", onclick: () => location.reload() }, "Try again"),
  );
}

begin().catch(sayWrong);
