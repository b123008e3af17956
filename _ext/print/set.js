// Makes the document ready for print, and names what is still wider than a page: Chromium would shrink the whole book by it.
async () => {
  await MathJax.startup.promise;
  for (const { typesetRoot, math } of MathJax.startup.document.math) {
    typesetRoot.setAttribute("role", "img");
    typesetRoot.setAttribute("aria-label", math);
    typesetRoot.querySelector("mjx-assistive-mml")?.remove();
  }
  await document.fonts.ready;
  await Promise.all([...document.images].map(image => image.decode()));
  const room = document.body.clientWidth;
  for (const table of document.querySelectorAll("table")) {
    const { left, width } = table.getBoundingClientRect(), fits = Math.floor(100 * (room - left) / width) / 100;
    if (fits < 1) table.style.zoom = Math.max(fits, 0.7);
    table.classList.toggle("broken", fits < 0.7);
  }
  return [...document.querySelectorAll("section > *, section > * > *")]
    .filter(part => part.getBoundingClientRect().right > room + 1)
    .map(part => part.closest("section.page").id + ": " + part.textContent.trim().slice(0, 60));
}
