// Parts of a page that are asked for every second: fetched as HTML from this server and put in place of the old ones.
(() => {
  "use strict";
  const EVERY = 1000;
  const SLOWEST = 15000;

  const spoken = document.querySelector("[data-say]");
  const say = (text) => {
    if (spoken && text && spoken.textContent !== text) spoken.textContent = text;
  };

  const follow = (place) => {
    let wait = EVERY;
    let last = "";

    const put = (text) => {
      const part = new DOMParser().parseFromString(text, "text/html").body.firstElementChild;
      if (!part) return true;
      say(part.dataset.said);
      if (part.dataset.done) {
        window.location.reload();
        return false;
      }
      if (text === last) return true;
      last = text;
      // What had the focus, and what was unfolded, stays so.
      const focused = place.contains(document.activeElement) ? document.activeElement.id : "";
      const open = [...place.querySelectorAll("details")].map((fold) => fold.open);
      const scrolled = [...place.querySelectorAll(".frame")].map((frame) => frame.scrollLeft);
      place.replaceChildren(document.importNode(part, true));
      place.querySelectorAll("details").forEach((fold, k) => { fold.open = Boolean(open[k]); });
      place.querySelectorAll(".frame").forEach((frame, k) => { frame.scrollLeft = scrolled[k] || 0; });
      const again = focused && document.getElementById(focused);
      if (again) again.focus();
      return true;
    };

    const ask = async () => {
      let more = true;
      try {
        if (!document.hidden) {
          const answer = await fetch(place.dataset.poll, { credentials: "same-origin", redirect: "error", cache: "no-store" });
          if (answer.status === 401 || answer.status === 404) {
            say("This can no longer be followed. Reload the page.");
            return;
          }
          if (answer.ok) more = put(await answer.text());
          wait = answer.ok ? EVERY : Math.min(2 * wait, SLOWEST);
        }
      } catch (error) {
        wait = Math.min(2 * wait, SLOWEST);
        say("The server does not answer. It will be asked again.");
      }
      if (more) window.setTimeout(ask, wait);
    };
    window.setTimeout(ask, EVERY);
  };

  for (const place of document.querySelectorAll("[data-poll]")) follow(place);
})();
