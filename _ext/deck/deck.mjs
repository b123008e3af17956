// reveal.js as a module, for RequireJS, which the widgets need, would take it for one of its own. `?print-pdf` prints the deck.
import Reveal from "./reveal.mjs";
import Notes from "./plugin/notes.mjs";

window.Reveal = Reveal;
Reveal.initialize({ hash: true, width: 1280, height: 720, margin: 0.04, center: false, transition: "none", plugins: [Notes] });
