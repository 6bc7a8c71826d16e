// The address of a screen is the part after #, so that a link to it can be sent and the browser's buttons work.

// Another address for what is shown now, without a step in the browser's history.
export function keepAddress(hash) {
  if (location.hash === hash) return;
  try {
    history.replaceState(null, "", hash);
  } catch { /* a frame of a notebook has no address of its own */ }
}

// In a frame links would lead to the page around it.
export function followLinks() {
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='#']");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    location.hash = link.getAttribute("href");
  });
}
