// The tab "Argue about a grade": CAELF grades, the learner objects, and the graph shows what that changed.
import { ask, listen } from "./api.js";
import { announce, el, fromTemplate, prose } from "./dom.js";
import { drawGraph } from "./graph.js";
import { openSession } from "./writing.js";

const DOING = {
  argue: "Sarah and Mike read the essay",
  reflect: "Sarah and Mike answer each other",
  attack: "it is asked who attacks whom",
  answer: "the teacher grades",
  contest: "your objection is heard",
};
const KEPT = "metaprobe-grading";

/** Shows the tab, with the last grading of this window. */
export async function showArguing(main, about) {
  const view = fromTemplate("argue");
  main.replaceChildren(view);
  const tab = new Arguing(view, about.traits);
  const last = sessionStorage.getItem(KEPT);
  const kept = last ? await ask("GET", `/api/gradings/${last}`).catch(() => null) : null;
  if (kept) tab.takeUp(kept);
}

class Arguing {
  constructor(view, traits) {
    this.view = view;
    this.essay = view.querySelector("#essay");
    this.trait = view.querySelector(".trait");
    this.doing = view.querySelector(".at-work");
    this.problem = view.querySelector(".problem");
    this.result = view.querySelector(".graded");
    this.stopButton = view.querySelector(".stop");
    this.trait.append(...traits.map((trait) => el("option", { value: trait }, trait)));
    view.querySelector(".take").addEventListener("click", () => (this.essay.value = openSession()?.editor.text ?? ""));
    view.querySelector(".grade").addEventListener("submit", (event) => (event.preventDefault(), this.grade()));
    view.querySelector(".contest").addEventListener("submit", (event) => (event.preventDefault(), this.contest()));
    this.stopButton.addEventListener("click", () => this.job && ask("POST", `/api/gradings/jobs/${this.job}/stop`).catch(() => {}));
  }

  takeUp(kept) {
    this.id = kept.id;
    this.essay.value = kept.essay;
    this.trait.value = kept.trait;
    if (kept.contests.length) this.showContest(kept.contests.at(-1));
    else if (kept.grading) this.showGrading(kept.grading);
  }

  async grade() {
    await this.work("/api/gradings", { essay: this.essay.value, trait: this.trait.value }, { grading: (one) => this.showGrading(one) });
    if (this.id) sessionStorage.setItem(KEPT, this.id);
  }

  async contest() {
    const text = this.view.querySelector("#objection").value;
    const level = this.view.querySelector(".wanted").value;
    const body = { text, level: level === "" ? null : Number(level) };
    await this.work(`/api/gradings/${this.id}/contests`, body, { contest: (one) => this.showContest(one) });
  }

  /** Begins a job and listens to it; what goes wrong is said below the buttons. */
  async work(path, body, on) {
    if (this.job) return;
    this.problem.textContent = "";
    try {
      const { id, job } = await ask("POST", path, body);
      this.id = id;
      this.job = job;
      this.setBusy(true);
      let heard = false;
      const told = { error: (error) => ((heard = true), (this.problem.textContent = error)) };
      for (const [name, does] of Object.entries(on)) told[name] = (value) => ((heard = true), does(value));
      told.stage = (stage) => (this.doing.textContent = `At work: ${DOING[stage] ?? stage} …`);
      await listen(`/api/gradings/jobs/${job}/events`, told);
      if (!heard) this.problem.textContent = "Stopped. Nothing was graded.";
    } catch (error) {
      this.problem.textContent = error.message;
    } finally {
      this.job = null;
      this.setBusy(false);
    }
  }

  setBusy(busy) {
    for (const button of this.view.querySelectorAll(".send")) button.disabled = busy;
    this.stopButton.hidden = !busy;
    this.doing.textContent = busy ? "At work …" : "";
  }

  showGrading(grading) {
    this.result.hidden = false;
    this.view.querySelector(".verdict").replaceChildren(
      el("p", { class: "grade-line" }, "Grade: ", el("strong", {}, levelOf(grading.level))),
      ...prose(grading.feedback),
    );
    this.draw(grading, {});
    announce(`The grade is ${levelOf(grading.level)}`);
  }

  showContest(contest) {
    const { before, after, stands, deciding, changed } = contest;
    this.result.hidden = false;
    const same = before.level === after.level;
    const names = after.nodes.map((node, i) => `argument ${i + 1} (${node.speaker})`);
    const says = [
      stands ? "Your objection stands against the other arguments." : "Your objection does not stand: an argument that stands attacks it.",
      deciding.length
        ? `Without one of these attacks other arguments would stand: ${deciding.map(([a, b]) => `${names[a]} on ${names[b]}`).join("; ")}.`
        : "No single attack of or on your objection decides which arguments stand.",
      changed.length
        ? changed.map((i) => `${names[i]} ${after.nodes[i].standing ? "stands now" : "stands no more"}`).join("; ").replace("argument", "Argument") + "."
        : "The same first arguments stand as before.",
    ];
    this.view.querySelector(".verdict").replaceChildren(
      el(
        "p",
        { class: "grade-line" },
        same ? "The grade stays: " : "The grade changed: ",
        same ? null : el("s", {}, levelOf(before.level)),
        same ? null : " → ",
        el("strong", {}, levelOf(after.level)),
      ),
      el("ul", {}, ...says.map((text) => el("li", {}, text))),
      ...prose(after.feedback),
    );
    this.draw(after, { learner: after.nodes.length - 1, deciding, changed });
    announce(same ? "The grade stays" : `The grade is now ${levelOf(after.level)}`);
  }

  draw(grading, marked) {
    const spoken = this.view.querySelector(".spoken");
    const show = (i) => {
      const node = grading.nodes[i];
      spoken.replaceChildren(
        el("h3", {}, `Argument ${i + 1}: ${node.speaker}, ${levelOf(node.level)}, ${node.standing ? "stands" : "does not stand"}`),
        ...prose(node.text),
      );
    };
    spoken.replaceChildren();
    const graph = drawGraph(grading, marked, show);
    this.view.querySelector(".graph svg")?.remove();
    this.view.querySelector(".graph").prepend(graph);
    this.view.querySelector(".graph-list")?.remove();
    spoken.before(listOf(grading));
  }
}

/** The graph in words, for whoever does not see it. */
function listOf(grading) {
  const name = (i) => `${i + 1} (${grading.nodes[i].speaker})`;
  const items = grading.nodes.map((node, i) => {
    const attacks = grading.attacks.filter(([from]) => from === i).map(([, to]) => name(to));
    const words = `Argument ${name(i)}, ${levelOf(node.level)}, ${node.standing ? "stands" : "does not stand"}`;
    return el("li", {}, attacks.length ? `${words}; attacks ${attacks.join(", ")}` : words);
  });
  return el("details", { class: "graph-list" }, el("summary", {}, "The graph in words"), el("ul", {}, ...items));
}

function levelOf(level) {
  return level === null ? "no level that can be read" : `level ${level}`;
}
