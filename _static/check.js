// Judges an answer on the page, without Python: the same verdicts, in the same order, as scaling_lib.show.check.
(() => {
  const number = (text) => {
    const plain = text.replace(/,(?=\d{3}(?!\d))|[_\s]/g, "").replace(/\^/g, "**").replace(/×/g, "*").replace(/−/g, "-");
    if (!/^[\d.eE+\-*/()]+$/.test(plain)) return NaN; // arithmetic of numbers, and nothing else, is evaluated
    try {
      return Function(`"use strict"; return (${plain});`)();
    } catch {
      return NaN;
    }
  };

  const judge = (question, text) => {
    if (question.options.length) return question.verdicts.find(([value]) => value === text)?.[2];
    const given = number(text);
    if (!Number.isFinite(given)) return "That is no number. Write one without its unit, like 1200, 1.2e3 or 3 * 2**10.";
    const found = question.verdicts.find(([value, within]) => Math.abs(given - value) <= within * Math.abs(value));
    return found?.[2] ?? `Not yet: that is too ${given > question.verdicts[0][0] ? "large" : "small"}.`;
  };

  const make = (form) => {
    const question = JSON.parse(form.dataset.question);
    const label = document.createElement("label");
    const unit = { s: "seconds", B: "bytes" }[question.unit] ?? question.unit;
    label.append(unit ? `Your answer, in ${unit} ` : "Your answer ");
    const field = document.createElement(question.options.length ? "select" : "input");
    if (question.options.length) field.append(...["", ...question.options].map((option) => new Option(option)));
    field.autocomplete = "off";
    field.required = true;
    label.append(field);
    const button = document.createElement("button");
    button.textContent = "Check";
    const verdict = document.createElement("output");
    form.replaceChildren(label, button, verdict);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      verdict.textContent = judge(question, field.value.trim());
      verdict.className = verdict.textContent.startsWith("Right") ? "right" : "not-yet";
    });
    form.hidden = false;
  };

  addEventListener("DOMContentLoaded", () => document.querySelectorAll("form.check").forEach(make));
})();
