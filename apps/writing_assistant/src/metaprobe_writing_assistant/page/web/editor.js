// The editor: saves as one writes, keeps what could not be saved in the browser, shows remarks beside their sentences.
import { ask } from "./api.js";
import { announce, el, notice, pick, when } from "./dom.js";

const PAUSE_MS = 700;
const AGAIN_MS = 4000;

/** The text of one session. `view`: the copied template "writing"; `session`: as the server gives it. */
export class Editor {
  constructor(view, session) {
    this.session = session;
    this.revision = session.revision;
    this.path = `/api/sessions/${session.id}`;
    this.box = view.querySelector(".draft");
    this.mirror = view.querySelector(".mirror");
    this.margin = view.querySelector(".margin");
    this.status = view.querySelector(".saved");
    this.counter = view.querySelector(".count");
    this.remarks = [];
    this.timer = null;
    this.saving = null;
    this.stored = session.draft; // what the server has
    this.box.value = session.draft;
    this.box.addEventListener("input", () => this.changed());
    view.querySelector(".versions").addEventListener("click", () => this.showVersions());
    this.watch = new ResizeObserver(() => this.placeRemarks());
    this.watch.observe(this.mirror);
    this.takeUpUnsaved();
    this.draw();
    this.leaving = () => this.saveNow().catch(() => {});
    window.addEventListener("pagehide", this.leaving);
  }

  close() {
    clearTimeout(this.timer);
    this.watch.disconnect();
    window.removeEventListener("pagehide", this.leaving);
  }

  get text() {
    return this.box.value;
  }

  get localName() {
    return `metaprobe-draft:${this.session.id}`;
  }

  changed() {
    this.keepLocally();
    this.draw();
    this.say("Writing …");
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.saveNow().catch(() => {}), PAUSE_MS);
  }

  /** Saves; raises `Refused` where that failed, after saying so. */
  async saveNow() {
    clearTimeout(this.timer);
    while (this.saving) await this.saving.catch(() => {});
    if (this.text === this.stored) return;
    this.saving = this.save(this.text);
    try {
      await this.saving;
    } finally {
      this.saving = null;
    }
  }

  async save(text) {
    try {
      const { revision } = await ask("PUT", `${this.path}/draft`, { text, revision: this.revision });
      this.revision = revision;
      this.stored = text;
      if (this.text === text) localStorage.removeItem(this.localName);
      else this.keepLocally(); // with the new revision
      this.say("Saved");
    } catch (error) {
      if (error.status === 409) this.chooseWindow();
      else {
        this.say(`Not saved. Your text is kept in this browser. ${error.message}`, true);
        this.timer = setTimeout(() => this.saveNow().catch(() => {}), AGAIN_MS);
      }
      throw error;
    }
  }

  keepLocally() {
    try {
      localStorage.setItem(this.localName, JSON.stringify({ text: this.text, revision: this.revision }));
    } catch {
      this.say("Not saved: this browser's own room is full as well. Copy your text to a safe place.", true);
    }
  }

  /** A text that this browser holds and the server has not. */
  takeUpUnsaved() {
    const kept = localStorage.getItem(this.localName);
    if (kept === null) return;
    const { text, revision } = JSON.parse(kept);
    if (text === this.stored) {
      localStorage.removeItem(this.localName);
    } else if (revision === this.revision) {
      this.box.value = text;
      this.timer = setTimeout(() => this.saveNow().catch(() => {}), 0);
    } else {
      notice("This browser holds a text that was never saved, and another one was saved since.", {
        buttons: [
          ["Take the unsaved one", () => ((this.box.value = text), this.changed())],
          ["Drop it", () => localStorage.removeItem(this.localName)],
        ],
      });
    }
  }

  chooseWindow() {
    this.say("Not saved: this text was changed in another window.", true);
    if (this.choosing) return;
    this.choosing = notice("This text was changed in another window. Both are kept as versions, whichever you take.", {
      kind: "bad",
      buttons: [
        ["Take the other one", () => this.settle(false)],
        ["Keep this one", () => this.settle(true)],
      ],
    });
  }

  async settle(keepMine) {
    this.choosing = null;
    const other = await ask("GET", this.path);
    await ask("POST", `${this.path}/versions`);
    this.revision = other.revision;
    this.stored = other.draft;
    const mine = this.text;
    await this.saveNow(); // so that mine becomes a version too
    await ask("POST", `${this.path}/versions`);
    this.box.value = keepMine ? mine : other.draft;
    await this.saveNow();
    this.draw();
  }

  say(text, bad = false) {
    this.status.textContent = text;
    this.status.classList.toggle("bad", bad);
  }

  async showVersions() {
    await this.saveNow().catch(() => {});
    const versions = await ask("GET", `${this.path}/versions`);
    pick("Versions of your text", (box, close) => {
      const keep = async () => {
        await ask("POST", `${this.path}/versions`);
        announce("This version is kept");
        close();
      };
      const take = async (number) => {
        await ask("POST", `${this.path}/versions`);
        this.box.value = (await ask("GET", `${this.path}/versions/${number}`)).text;
        this.changed();
        close();
        this.box.focus();
      };
      box.append(el("p", {}, el("button", { type: "button", onclick: keep }, "Keep the text as it is now")));
      box.append(el("p", { class: "hint" }, "The newest 500 versions are kept."));
      const list = el("ul", { class: "choices" });
      for (const one of versions.toReversed()) {
        const says = `${when(one.at)}, ${one.words} words, ${one.saved}`;
        list.append(el("li", {}, el("span", {}, says), el("button", { type: "button", onclick: () => take(one.number) }, "Take this one")));
      }
      box.append(versions.length ? list : el("p", { class: "hint" }, "There is no version yet."));
    });
  }

  /** Shows remarks: those about a sentence that the text still has stand beside it. */
  setRemarks(remarks) {
    this.remarks = remarks.filter((remark) => remark.quote);
    this.draw();
  }

  draw() {
    const text = this.text;
    const words = text.trim() ? text.trim().split(/\s+/).length : 0;
    this.counter.textContent = words === 1 ? "1 word" : `${words.toLocaleString()} words`;
    const places = this.remarks
      .map((remark, i) => ({ remark, i, at: text.indexOf(remark.quote) }))
      .toSorted((a, b) => a.at - b.at);
    const parts = [];
    let end = 0;
    for (const { remark, at } of places) {
      if (at < end || at < 0) continue;
      parts.push(text.slice(end, at), el("mark", { "data-quote": remark.quote }, remark.quote));
      end = at + remark.quote.length;
    }
    this.mirror.replaceChildren(...parts, `${text.slice(end)}\n`);
    this.drawMargin(places);
  }

  drawMargin(places) {
    const wanted = places.map(({ remark, at }) => `${remark.kind}:${remark.text}:${at >= 0}`).join("|");
    this.margin.hidden = !places.length;
    this.margin.parentElement.classList.toggle("with-margin", places.length > 0);
    if (wanted !== this.drawn) {
      this.drawn = wanted;
      this.margin.replaceChildren(...places.map(({ remark, at }) => this.remarkBox(remark, at)));
    }
    this.placeRemarks();
  }

  remarkBox(remark, at) {
    const first = remark.quote.split(/\s+/).slice(0, 6).join(" ");
    const show = () => {
      const start = this.text.indexOf(remark.quote);
      if (start < 0) return;
      this.box.focus();
      this.box.setSelectionRange(start, start + remark.quote.length);
    };
    const who = remark.kind === "monitor" ? "Monitor" : "Control";
    const box = el(
      "details",
      { class: `remark ${remark.kind}`, "data-quote": remark.quote, ontoggle: () => this.placeRemarks() },
      el("summary", {}, el("strong", {}, who), ` on “${first} …”`),
      el("p", {}, remark.text),
      at >= 0
        ? el("button", { type: "button", onclick: show }, "Show the sentence")
        : el("p", { class: "hint" }, "You have changed this sentence since."),
    );
    return box;
  }

  /** On a wide page each remark stands at the height of its sentence, and pushes the next one down. */
  placeRemarks() {
    const wide = getComputedStyle(this.margin).position === "relative";
    let bottom = 0;
    for (const box of this.margin.children) {
      const mark = [...this.mirror.children].find((one) => one.dataset.quote === box.dataset.quote);
      const top = Math.max(bottom, mark ? mark.offsetTop : bottom);
      box.style.top = wide ? `${top}px` : "";
      bottom = top + box.offsetHeight + 8;
    }
    this.margin.style.minHeight = wide ? `${bottom}px` : "";
  }
}
