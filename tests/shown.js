(root) => {
  const all = (selector, read) => [...root.querySelectorAll(selector)].map(read);
  return {
    words: all("p.explorer-words", (p) => p.innerHTML),
    numbers: all("table.explorer-numbers tr", (row) => [...row.children].map((cell) => cell.textContent)),
    why: all("div.explorer-why", (div) => div.textContent),
    points: all("svg[role=img] circle.point", (point) => [point.getAttribute("cx"), point.getAttribute("cy")]),
    lines: all("svg[role=img] polyline", (line) => [line.getAttribute("class"), line.getAttribute("points")]),
    figure: all("svg[role=img]", (svg) => svg.outerHTML),
    python: all("pre.explorer-python > code", (code) => code.textContent),
    link: all("a.explorer-link", (link) => link.getAttribute("href")),
  };
}
