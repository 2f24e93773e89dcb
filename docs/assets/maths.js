// Formulas: Arithmatex leaves \( \) and \[ \] in elements of class "arithmatex"; KaTeX, shipped beside this file, sets them.
function setMaths() {
  document.querySelectorAll(".arithmatex").forEach((element) =>
    renderMathInElement(element, {
      delimiters: [
        { left: "\\(", right: "\\)", display: false },
        { left: "\\[", right: "\\]", display: true },
      ],
      throwOnError: false,
    }),
  );
}
if (typeof document$ !== "undefined") document$.subscribe(setMaths);
else document.addEventListener("DOMContentLoaded", setMaths);
