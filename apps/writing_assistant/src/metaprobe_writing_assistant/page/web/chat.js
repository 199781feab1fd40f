// The conversation beside the text.
import { ask, listen } from "./api.js";
import { announce, el, prose } from "./dom.js";
import { foundOf } from "./found.js";

const DOING = {
  profile: "reads what you said about yourself",
  stage: "finds out where you are in your writing",
  topic: "names your topic",
  guide: "plans how to help",
  aggregate: "plans how to help",
  words: "chooses words",
  explain: "explains words",
  extract: "looks for your text in your message",
  assess: "judges your text",
  reasoning: "asks itself how hard your question is",
  answer: "thinks about your question",
  monitor: "monitor: checks what it thought",
  control: "control: argues against it",
  synthesis: "brings it together",
  respond: "writes the answer",
};

/** The turns of one session. `editor` is saved before a message is sent, and gets the remarks of the last answer. */
export class Chat {
  constructor(view, session, editor) {
    this.session = session;
    this.editor = editor;
    this.path = `/api/sessions/${session.id}/turns`;
    this.list = view.querySelector(".turns");
    this.form = view.querySelector(".ask");
    this.message = this.form.querySelector("textarea");
    this.problem = this.form.querySelector(".problem");
    this.stopButton = this.form.querySelector(".stop");
    this.sendButton = this.form.querySelector(".send");
    this.form.addEventListener("submit", (event) => (event.preventDefault(), this.send(this.message.value)));
    this.message.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.form.requestSubmit();
    });
    this.message.value = localStorage.getItem(this.localName) ?? "";
    this.message.addEventListener("input", () => this.keepMessage());
    this.stopButton.addEventListener("click", () => this.stop());
    for (const turn of session.turns) this.show(turn);
    this.showRemarks(session.turns);
  }

  get localName() {
    return `metaprobe-message:${this.session.id}`;
  }

  keepMessage() {
    try {
      if (this.message.value) localStorage.setItem(this.localName, this.message.value);
      else localStorage.removeItem(this.localName);
    } catch {
      // the browser's room is full: the message stays in its box
    }
  }

  async send(text) {
    if (this.running !== undefined || this.sending) return;
    this.problem.textContent = "";
    this.sending = true;
    this.sendButton.disabled = true;
    try {
      await this.editor.saveNow();
      const turn = await ask("POST", this.path, { message: text });
      this.message.value = "";
      this.keepMessage();
      this.show(turn);
      this.list.lastElementChild.scrollIntoView({ block: "nearest" });
    } catch (error) {
      this.problem.textContent = error.message;
    } finally {
      this.sending = false;
      this.sendButton.disabled = this.running !== undefined;
    }
  }

  async stop() {
    if (this.running === undefined) return;
    await ask("POST", `${this.path}/${this.running}/stop`).catch((error) => (this.problem.textContent = error.message));
  }

  setRunning(number) {
    this.running = number;
    this.stopButton.hidden = number === undefined;
    this.sendButton.disabled = number !== undefined;
  }

  /** Adds a turn, and listens to it where it is at work. */
  show(turn) {
    const answer = el("div", { class: "answer", tabindex: "-1" });
    const entry = el("li", { class: "turn" }, this.mine(turn), answer);
    this.list.append(entry);
    if (turn.state === "running") this.follow(turn, answer);
    else this.fill(answer, turn);
  }

  mine(turn) {
    const said = turn.message.trim() || "(Please look at my text.)";
    return el("div", { class: "mine" }, el("h3", { class: "unseen" }, "You"), el("p", {}, said));
  }

  async follow(turn, answer) {
    this.setRunning(turn.number);
    announce("The assistant is at work");
    const doing = el("p", { class: "doing" }, "The assistant is at work …");
    const text = el("div", { class: "prose" });
    answer.replaceChildren(el("h3", { class: "unseen" }, "Assistant"), doing, text);
    answer.setAttribute("aria-busy", "true");
    let said = "";
    let ended = null;
    const known = await listen(`${this.path}/${turn.number}/events`, {
      stage: (stage) => (doing.textContent = `The assistant ${DOING[stage] ?? `is at: ${stage}`} …`),
      text: (piece) => this.atBottom(() => text.replaceChildren(...prose((said += piece)))),
      turn: (last) => (ended = last),
      unkept: (why, event) => (ended = { ...turn, ...event, error: `The answer could not be kept. ${why}` }),
    });
    this.setRunning(undefined);
    answer.removeAttribute("aria-busy");
    if (!ended) ended = await this.asKept(turn, said, known);
    this.fill(answer, ended);
    announce(ended.state === "done" ? "The answer is there" : `No answer: ${ended.error || ended.state}`);
    this.showRemarks([ended]);
  }

  /** Changes the conversation, and stays at its end where that was in sight. */
  atBottom(change) {
    const box = this.list;
    const was = box.scrollHeight - box.scrollTop - box.clientHeight < 60;
    change();
    if (was) box.scrollTop = box.scrollHeight;
  }

  /** The turn as the server keeps it, where its events did not say how it ended. */
  async asKept(turn, said, known) {
    const gone = { ...turn, state: "failed", text: said, error: "The program behind this page has ended." };
    if (known === undefined) return gone;
    const session = await ask("GET", `/api/sessions/${this.session.id}`).catch(() => null);
    return session?.turns.find((one) => one.number === turn.number) ?? gone;
  }

  fill(answer, turn) {
    answer.replaceChildren(
      el("h3", { class: "unseen" }, "Assistant"),
      el("div", { class: "prose" }, ...prose(turn.text)),
      ...(turn.reply ? foundOf(turn) : []),
    );
    if (turn.state === "stopped") answer.append(el("p", { class: "hint" }, "You stopped this answer."));
    if (turn.error) answer.append(el("p", { class: "problem" }, turn.error));
    if (turn.state === "failed") {
      const again = () => this.send(turn.message);
      answer.append(el("button", { type: "button", class: "again", onclick: again }, "Ask again"));
    }
  }

  showRemarks(turns) {
    const last = turns.findLast((turn) => turn.reply);
    if (last) this.editor.setRemarks(last.reply.remarks);
  }
}
