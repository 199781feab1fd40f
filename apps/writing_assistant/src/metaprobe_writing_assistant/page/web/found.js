// What the assistant's modules found, below its answer: score, words, remarks, and what the answer cost.
import { el, prose } from "./dom.js";

const STAGES = { pre: "before writing", during: "while drafting", post: "after the draft" };
const WAYS = { single: "one model alone", multi: "modules", metacrit: "modules, with monitor and control" };

/** Returns the elements for a finished turn. */
export function foundOf(turn) {
  const { rubric, cards, remarks, notes } = turn.reply;
  return [
    ...notes.map((note) => el("p", { class: "hint note" }, note)),
    rubric && scoreOf(rubric),
    cards.length ? wordsOf(cards) : null,
    ...remarks.filter((remark) => !remark.quote).map(generalRemark),
    remarks.some((remark) => remark.quote) ? el("p", { class: "hint" }, "Remarks on sentences stand with your text.") : null,
    aboutOf(turn),
  ].filter(Boolean);
}

function scoreOf(rubric) {
  const dots = Array.from({ length: 5 }, (_, i) => el("span", { class: i < rubric.score ? "dot full" : "dot" }));
  const steps = rubric.steps.length > 1 ? rubric.steps : [];
  return el(
    "section",
    { class: "score", "aria-label": `Score ${rubric.score} of 5` },
    el("p", {}, el("strong", {}, `Score ${rubric.score} of 5 `), el("span", { class: "dots", "aria-hidden": "true" }, ...dots)),
    el(
      "details",
      {},
      el("summary", {}, "Reasons for the score"),
      ...prose(rubric.reasons || "The assessor gave none."),
      ...steps.flatMap((step, i) => [el("p", { class: "heading" }, `Step ${i + 1}`), ...prose(step)]),
    ),
  );
}

function wordsOf(cards) {
  const list = el("ul", { class: "cards", "aria-label": "Words for your topic" });
  for (const card of cards) {
    list.append(
      el(
        "li",
        { class: "card" },
        el("h4", {}, card.word, " ", el("span", { class: "hint" }, card.part_of_speech)),
        card.definition ? el("p", {}, card.definition) : null,
        card.example ? el("p", { class: "example" }, `“${card.example}”`) : null,
        card.explanation ? el("details", {}, el("summary", {}, "More"), ...prose(card.explanation)) : null,
        card.source ? el("p", { class: "hint" }, card.source) : null,
      ),
    );
  }
  return list;
}

function generalRemark(remark) {
  const who = remark.kind === "monitor" ? "Monitor" : "Control";
  return el("details", { class: `remark ${remark.kind}` }, el("summary", {}, el("strong", {}, who), " on your request"), ...prose(remark.text));
}

function aboutOf(turn) {
  const { stage, topic, quality, doubted } = turn.reply;
  const said = [
    `Answered by ${WAYS[turn.condition]}`,
    stage ? STAGES[stage] : "no stage of writing",
    topic ? `topic: ${topic}` : null,
    quality === null ? null : `predicted quality ${quality.toFixed(2)}${doubted ? ", doubted" : ""}`,
    `${turn.calls} calls, ${turn.tokens.toLocaleString()} tokens, ${turn.seconds.toFixed(1)} s`,
  ];
  return el("p", { class: "hint about" }, said.filter(Boolean).join(" · "));
}
