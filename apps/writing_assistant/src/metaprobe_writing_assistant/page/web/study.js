// A participant's way through a study: consent, three texts with one assistant each, the survey, and the code.
import { ask } from "./api.js";
import { Chat } from "./chat.js";
import { announce, el, fromTemplate } from "./dom.js";
import { Editor } from "./editor.js";
import { fillView } from "./writing.js";

const TOKEN = "metaprobe-study";
const CANNOT_SAY = "I cannot say";

/** Shows where the participant of this browser is, or the consent. */
export async function showStudy(main) {
  const view = fromTemplate("study");
  main.replaceChildren(view);
  const step = view.querySelector(".step");
  const token = localStorage.getItem(TOKEN);
  const taking = token ? await ask("GET", `/api/study/${token}`).catch(passUnlessGone) : null;
  if (taking) await showStep(step, taking);
  else showConsent(step, await ask("GET", "/api/study"));
}

function passUnlessGone(error) {
  if (error.status !== 404) throw error;
  return null;
}

function showConsent(step, { consent }) {
  const agree = el("input", { type: "checkbox", id: "agree", required: true });
  const problem = el("p", { class: "problem", role: "alert" });
  const begin = async (event) => {
    event.preventDefault();
    try {
      const taking = await ask("POST", "/api/study", { consent: agree.checked });
      localStorage.setItem(TOKEN, taking.token);
      await showStep(step, taking);
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  step.replaceChildren(
    el("h2", {}, "Before you begin"),
    ...consent.map((text) => el("p", {}, text)),
    el(
      "form",
      { class: "consent", onsubmit: begin },
      el("p", {}, agree, " ", el("label", { for: "agree" }, "I have read this, and I want to take part.")),
      el("button", { type: "submit", class: "send" }, "Begin"),
      problem,
    ),
  );
}

async function showStep(step, taking) {
  const shows = { write: showPart, survey: showSurvey, done: showEnd };
  await shows[taking.step](step, taking);
  step.append(leaving(taking));
  window.scrollTo(0, 0);
}

async function showPart(step, taking) {
  const session = await ask("GET", `/api/sessions/${taking.session}`);
  const name = `Assistant ${taking.part + 1}`;
  const problem = el("p", { class: "problem", role: "alert" });
  const view = fillView(session);
  view.querySelector("#talk-head").textContent = name;
  const editor = new Editor(view, session);
  new Chat(view, session, editor);
  const next = async () => {
    try {
      await editor.saveNow();
      const after = await ask("POST", `/api/study/${taking.token}/next`, { part: taking.part });
      editor.close();
      await showStep(step, after);
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  step.replaceChildren(
    el(
      "div",
      { class: "bar part" },
      el("h2", {}, `Text ${taking.part + 1} of ${taking.parts}, with ${name}`),
      el("span", { class: "hint" }, `Your code: ${taking.code}`),
      el("button", { type: "button", class: "next", onclick: next }, "I am finished with this text"),
    ),
    problem,
    view,
  );
  announce(`Text ${taking.part + 1} of ${taking.parts}`);
}

async function showSurvey(step, taking) {
  const path = `/api/study/${taking.token}`;
  const problem = el("p", { class: "problem", role: "alert" });
  const left = el("p", { class: "hint", role: "status" });
  const answers = { ...taking.answers };
  const count = () => {
    const missing = taking.questions.filter((question) => !(question.id in answers)).length;
    left.textContent = missing ? `${missing} questions have no answer yet.` : "Every question is answered.";
  };
  const choose = async (id, place) => {
    answers[id] = place;
    count();
    await ask("PUT", `${path}/answers`, { [id]: place }).then(
      () => (problem.textContent = ""),
      (error) => (problem.textContent = error.message),
    );
  };
  const hand = async (event) => {
    event.preventDefault();
    try {
      await ask("PUT", `${path}/answers`, answers); // those too whose saving failed
      await showStep(step, await ask("POST", `${path}/finish`));
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  const asked = taking.questions.map((question, number) => questionOf(question, number, taking, choose));
  step.replaceChildren(
    el("h2", {}, "Which assistant?"),
    el("p", {}, "You had Assistant 1 with your first text, Assistant 2 with your second, Assistant 3 with your third."),
    el("form", { class: "survey", onsubmit: hand }, ...asked, left, el("button", { type: "submit", class: "send" }, "Hand in"), problem),
  );
  count();
}

function questionOf(question, number, taking, choose) {
  const box = el("fieldset", {}, el("legend", {}, `${number + 1}. ${question.text}`));
  const places = Array.from({ length: taking.parts }, (_, place) => [place, `Assistant ${place + 1}`]);
  for (const [place, label] of [...places, [null, CANNOT_SAY]]) {
    const given = question.id in taking.answers && taking.answers[question.id] === place;
    const input = el("input", { type: "radio", name: question.id, onchange: () => choose(question.id, place) });
    input.checked = given;
    box.append(el("label", {}, input, ` ${label}`));
  }
  return box;
}

async function showEnd(step, taking) {
  step.replaceChildren(
    el("h2", {}, "Thank you"),
    el("p", {}, "Your answers are kept under this code. Write it down if you may want them deleted:"),
    el("p", { class: "code" }, taking.code),
  );
}

function leaving(taking) {
  const leave = async () => {
    if (!confirm("Stop, and delete everything that was kept under your code?")) return;
    await ask("DELETE", `/api/study/${taking.token}`);
    localStorage.removeItem(TOKEN);
    location.reload();
  };
  return el("p", { class: "leaving" }, el("button", { type: "button", onclick: leave }, "Stop taking part, and delete everything"));
}
