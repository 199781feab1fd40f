// The tab "Write": one session, its editor and its conversation.
import { ask } from "./api.js";
import { Chat } from "./chat.js";
import { announce, el, fromTemplate, pick, when } from "./dom.js";
import { Editor } from "./editor.js";

const LAST = "metaprobe-last-session";
let open = null;

/** The session that is open in this window, or null. */
export function openSession() {
  return open;
}

/** Shows the session in the address, else the last one of this browser, else a new one. */
export async function showWriting(main, about) {
  const wanted = new URLSearchParams(location.hash.slice(1)).get("text") ?? localStorage.getItem(LAST);
  let session = wanted ? await ask("GET", `/api/sessions/${wanted}`).catch(passUnlessGone) : null;
  session ??= await ask("POST", "/api/sessions", {});
  show(main, about, session);
}

function passUnlessGone(error) {
  if (error.status !== 404) throw error;
  return null;
}

function show(main, about, session) {
  localStorage.setItem(LAST, session.id);
  history.replaceState(null, "", `#text=${session.id}`);
  const view = fillView(session);
  main.replaceChildren(view);
  open?.editor.close();
  const editor = new Editor(view, session);
  open = { session, editor, chat: new Chat(view, session, editor) };
  const path = `/api/sessions/${session.id}`;
  const choice = view.querySelector(".condition");
  choice.value = session.condition;
  choice.addEventListener("change", async () => {
    await ask("PUT", `${path}/condition`, { condition: choice.value });
    announce("The next answer is made this way");
  });
  view.querySelector(".export-md").href = `${path}/export.md`;
  view.querySelector(".export-json").href = `${path}/export.json`;
  view.querySelector(".texts").addEventListener("click", () => showTexts(main, about));
}

/** Returns the view of a session, without editor and conversation; also that of a study's parts. */
export function fillView(session) {
  const view = fromTemplate("writing");
  const task = view.querySelector(".task");
  task.hidden = !session.task;
  task.textContent = session.task;
  for (const button of view.querySelectorAll(".panes button")) {
    button.addEventListener("click", () => {
      view.dataset.pane = button.dataset.show;
      for (const one of view.querySelectorAll(".panes button")) one.setAttribute("aria-pressed", String(one === button));
    });
  }
  const form = view.querySelector(".profile form");
  for (const [name, value] of Object.entries(session.profile)) form.elements[name].value = value ?? "";
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const said = form.querySelector(".kept");
    await ask("PUT", `/api/sessions/${session.id}/profile`, Object.fromEntries(new FormData(form))).then(
      () => (said.textContent = "Kept"),
      (error) => (said.textContent = error.message),
    );
  });
  return view;
}

async function showTexts(main, about) {
  await open.editor.saveNow().catch(() => {});
  const sessions = await ask("GET", "/api/sessions");
  pick("My texts", (box, close) => {
    const begin = async (task) => {
      const session = await ask("POST", "/api/sessions", { task });
      close();
      show(main, about, session);
    };
    const take = async (id) => {
      const session = await ask("GET", `/api/sessions/${id}`);
      close();
      show(main, about, session);
    };
    const drop = async (id, row) => {
      if (!confirm("Delete this text, its versions and its conversation?")) return;
      await ask("DELETE", `/api/sessions/${id}`);
      row.remove();
      if (id === open.session.id) {
        localStorage.removeItem(LAST);
        await begin("");
      }
    };
    box.append(el("p", {}, el("button", { type: "button", onclick: () => begin("") }, "Begin a new text")));
    const tasks = el("ul", { class: "choices" });
    for (const task of about.tasks) {
      tasks.append(el("li", {}, el("span", {}, task.title), el("button", { type: "button", onclick: () => begin(task.text) }, "Begin")));
    }
    box.append(el("h3", {}, "Or with a task"), tasks, el("h3", {}, "Texts that are there"));
    const list = el("ul", { class: "choices" });
    for (const one of sessions) {
      const row = el("li", {}, el("span", {}, `${one.title || "(empty)"}, ${when(one.at)}`));
      row.append(
        el("button", { type: "button", onclick: () => take(one.id) }, "Open"),
        el("button", { type: "button", onclick: () => drop(one.id, row) }, "Delete"),
      );
      list.append(row);
    }
    box.append(list);
  });
}
