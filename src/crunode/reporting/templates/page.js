"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const root = document.documentElement;

  // Light and dark: what the system prefers, until the reader chooses.
  const kept = (value) => {
    try {
      return value === undefined ? localStorage.getItem("crunode-theme") : localStorage.setItem("crunode-theme", value);
    } catch (error) {
      return null; // some browsers keep nothing for files
    }
  };
  const themes = () => {
    const button = document.querySelector("button.theme");
    if (!button) return;
    const dark = () => {
      const chosen = root.dataset.theme;
      return chosen ? chosen === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
    };
    const label = () => { button.textContent = dark() ? "Light colors" : "Dark colors"; };
    const before = kept();
    if (before === "light" || before === "dark") root.dataset.theme = before;
    button.hidden = false;
    label();
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      kept(root.dataset.theme);
      label();
    });
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);
  };

  const put = { linear: (x) => x, log: (x) => Math.log10(x), log1p: (x) => Math.log1p(Math.max(x, 0)) };
  const back = { linear: (u) => u, log: (u) => 10 ** u, log1p: (u) => Math.expm1(u) };
  const short = (v, digits = 4) => String(Number(Number(v).toPrecision(digits))).replace("e+", "e");

  const ticks = (low, high, scale) => {
    if (scale !== "linear") {
      const first = low > 0 ? Math.floor(Math.log10(low)) : 0;
      const last = high > 0 ? Math.floor(Math.log10(high)) : 0;
      const found = scale === "log1p" && low <= 0 ? [0] : [];
      const stride = Math.ceil(Math.max(last - first + 1, 1) / 6);
      const parts = last - first < 2 ? [1, 2, 5] : [1];
      for (let k = first; k <= last; k += stride) {
        for (const m of parts) if (m * 10 ** k >= low && m * 10 ** k <= high) found.push(m * 10 ** k);
      }
      if (found.length > 1) return found;
    }
    const span = high - low;
    if (!(span > 0) || !Number.isFinite(span)) return [low];
    const unit = 10 ** Math.floor(Math.log10(span / 5));
    const step = [1, 2, 5, 10].map((m) => m * unit).find((s) => span / s <= 5 + 1e-9);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * span; k += 1) found.push(k * step);
    return found;
  };

  const element = (name, attributes, text) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.data = JSON.parse(figure.dataset.chart);
      this.svg = figure.querySelector("svg");
      this.field = figure.querySelector("svg.field");
      this.readout = figure.querySelector(".readout");
      this.cursor = figure.querySelector(".cursor");
      this.view = this.data.domain.slice();
      this.points = [];
      this.data.series.forEach((series, owner) => {
        this.data.xs[series.x].forEach((x, k) => {
          const y = series.y[k];
          const error = series.error ? series.error[k] : null;
          if (x !== null && y !== null && y !== undefined) this.points.push({ x, y, error, owner, k, name: series.name });
        });
      });
      this.points.sort((a, b) => a.x - b.x || a.owner - b.owner);
      this.at = -1;
      this.listen();
    }

    across(x) {
      const [a, b] = this.view;
      const f = put[this.data.scale];
      return ((f(x) - f(a)) / (f(b) - f(a) || 1)) * this.data.box[2];
    }

    down(y) {
      const [, , low, high] = this.view;
      const place = this.data.box[3] * (1 - (y - low) / (high - low || 1));
      return Math.min(Math.max(place, -5000), 5000);
    }

    // Redraw for the part of the horizontal axis that is in view; heights follow what is there.
    show(low, high) {
      const [a, b, c, d] = this.data.domain;
      const f = put[this.data.scale];
      if (!(f(high) - f(low) > (f(b) - f(a)) * 1e-4)) return;
      this.view = [Math.max(low, a), Math.min(high, b), c, d];
      if (!this.data.names.length && (low > a || high < b)) {
        const seen = this.points.filter((p) => p.x >= this.view[0] && p.x <= this.view[1]);
        if (seen.length) {
          const ends = seen.flatMap((p) => [p.y - (p.error || 0), p.y + (p.error || 0)]);
          const least = Math.min(...ends);
          const most = Math.max(...ends);
          const pad = 0.06 * (most - least) || 0.05 * Math.abs(most) || 0.5;
          this.view[2] = least - pad;
          this.view[3] = most + pad;
        }
      }
      this.draw();
    }

    draw() {
      const groups = this.field.querySelectorAll("g.series");
      this.data.series.forEach((series, number) => {
        const xs = this.data.xs[series.x];
        const hollow = new Set(series.hollow || []);
        const d = { line: "", dots: "", holes: "", bars: "" };
        let last = -2;
        series.y.forEach((y, k) => {
          if (y === null || xs[k] === null || xs[k] === undefined) return;
          const x = this.across(xs[k]).toFixed(1);
          const py = this.down(y).toFixed(1);
          d.line += `${last === k - 1 ? "L" : "M"}${x} ${py}`;
          last = k;
          d.dots += `M${x} ${py}h0`;
          if (hollow.has(k)) d.holes += `M${x} ${py}h0`;
          const error = series.error ? series.error[k] : null;
          if (error !== null && error !== undefined) {
            d.bars += `M${x} ${this.down(y - error).toFixed(1)}V${this.down(y + error).toFixed(1)}`;
          }
        });
        for (const [name, path] of Object.entries(d)) {
          const drawn = groups[number] && groups[number].querySelector(`path.${name}`);
          if (drawn) drawn.setAttribute("d", path);
        }
      });
      const bands = this.field.querySelectorAll("rect.band");
      this.data.bands.forEach(([a, b], k) => {
        bands[k].setAttribute("x", this.across(a).toFixed(1));
        bands[k].setAttribute("width", Math.max(this.across(b) - this.across(a), 1).toFixed(1));
      });
      const marks = this.field.querySelectorAll("path.mark");
      this.data.marks.forEach((x, k) => marks[k].setAttribute("d", `M${this.across(x).toFixed(1)} 0v${this.data.box[3]}`));
      if (this.data.level) {
        const [value, half] = this.data.level;
        const top = this.down(value + half);
        this.field.querySelector("path.level").setAttribute("d", `M0 ${this.down(value).toFixed(1)}h${this.data.box[2]}`);
        const band = this.field.querySelector("rect.level");
        band.setAttribute("y", top.toFixed(1));
        band.setAttribute("height", Math.max(this.down(value - half) - top, 0).toFixed(1));
      }
      this.drawTicks();
      this.place();
    }

    drawTicks() {
      const [left, top, width, height] = this.data.box;
      const group = this.svg.querySelector("g.ticks");
      group.replaceChildren();
      for (const x of ticks(this.view[0], this.view[1], this.data.scale)) {
        const place = (left + this.across(x)).toFixed(1);
        group.append(element("path", { class: "grid", d: `M${place} ${top}v${height}` }));
        group.append(element("text", { x: place, y: top + height + 14, "text-anchor": "middle" }, short(x)));
      }
      const named = this.data.names;
      for (const y of named.length ? named.map((_, k) => k) : ticks(this.view[2], this.view[3], "linear")) {
        const place = top + this.down(y);
        const text = named.length ? (named[y].length > 22 ? `${named[y].slice(0, 21)}…` : named[y]) : short(y);
        group.append(element("path", { class: "grid", d: `M${left} ${place.toFixed(1)}h${width}` }));
        group.append(element("text", { x: left - 5, y: (place + 4).toFixed(1), "text-anchor": "end" }, text));
      }
    }

    // The point that is read out.
    choose(index) {
      this.at = Math.min(Math.max(index, 0), this.points.length - 1);
      const p = this.points[this.at];
      if (!p) return;
      const [horizontal, vertical] = this.data.labels;
      const value = this.data.names.length ? this.data.names[p.y] : short(p.y, 5);
      const error = p.error === null || p.error === undefined ? "" : ` ± ${short(p.error, 2)}`;
      const what = this.data.series.length > 1 ? `${p.name}: ` : "";
      this.readout.textContent = `${what}${horizontal} ${short(p.x, 6)}, ${vertical ? `${vertical} ` : ""}${value}${error}`;
      this.place();
    }

    place() {
      const p = this.points[this.at];
      const inside = p && p.x >= this.view[0] && p.x <= this.view[1];
      this.cursor.setAttribute("visibility", inside ? "visible" : "hidden");
      if (inside) {
        this.cursor.setAttribute("cx", this.across(p.x).toFixed(1));
        this.cursor.setAttribute("cy", this.down(p.y).toFixed(1));
      }
    }

    // Where a pointer is, in units of the field.
    spot(event) {
      const frame = this.svg.getBoundingClientRect();
      const unit = this.svg.viewBox.baseVal.width / frame.width;
      const [left, top] = this.data.box;
      return [(event.clientX - frame.left) * unit - left, (event.clientY - frame.top) * unit - top];
    }

    value(across) {
      const f = put[this.data.scale];
      const [a, b] = this.view;
      const share = Math.min(Math.max(across / this.data.box[2], 0), 1);
      return back[this.data.scale](f(a) + share * (f(b) - f(a)));
    }

    zoom(factor) {
      const f = put[this.data.scale];
      const g = back[this.data.scale];
      const [a, b] = this.view.map(f);
      const p = this.points[this.at];
      const middle = p && p.x >= this.view[0] && p.x <= this.view[1] ? f(p.x) : (a + b) / 2;
      const half = ((b - a) / 2) * factor;
      this.show(Math.max(g(middle - half), this.data.domain[0]), Math.min(g(middle + half), this.data.domain[1]));
    }

    reset() {
      this.show(this.data.domain[0], this.data.domain[1]);
    }

    listen() {
      const { svg, figure } = this;
      svg.setAttribute("tabindex", "0");
      svg.setAttribute("aria-label", `${svg.getAttribute("aria-label")} Arrow keys read points; plus, minus and zero zoom.`);
      let from = null;
      let shade = null;
      svg.addEventListener("pointerdown", (event) => {
        if (event.button !== 0) return;
        from = this.spot(event)[0];
        svg.setPointerCapture(event.pointerId);
      });
      svg.addEventListener("pointermove", (event) => {
        const [x, y] = this.spot(event);
        if (from !== null && Math.abs(x - from) > 6) {
          if (!shade) {
            shade = element("rect", { class: "select", y: 0, height: this.data.box[3] });
            this.field.append(shade);
          }
          shade.setAttribute("x", Math.min(from, x).toFixed(1));
          shade.setAttribute("width", Math.abs(x - from).toFixed(1));
        }
        let best = -1;
        let least = 900;
        this.points.forEach((p, k) => {
          if (p.x < this.view[0] || p.x > this.view[1]) return;
          const far = (this.across(p.x) - x) ** 2 + (this.down(p.y) - y) ** 2;
          if (far < least) [best, least] = [k, far];
        });
        if (best >= 0 && best !== this.at) this.choose(best);
      });
      svg.addEventListener("pointerup", (event) => {
        const to = this.spot(event)[0];
        if (from !== null && shade) this.show(this.value(Math.min(from, to)), this.value(Math.max(from, to)));
        if (shade) shade.remove();
        from = shade = null;
      });
      svg.addEventListener("pointercancel", () => {
        if (shade) shade.remove();
        from = shade = null;
      });
      svg.addEventListener("dblclick", () => this.reset());
      svg.addEventListener("keydown", (event) => {
        const moves = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10 };
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        if (event.key in moves) this.choose(this.at < 0 ? 0 : this.at + moves[event.key]);
        else if (event.key === "Home") this.choose(0);
        else if (event.key === "End") this.choose(this.points.length - 1);
        else if (event.key === "+" || event.key === "=") this.zoom(0.5);
        else if (event.key === "-") this.zoom(2);
        else if (event.key === "0" || event.key === "Escape") this.reset();
        else return;
        event.preventDefault();
      });
      const tools = document.createElement("div");
      tools.className = "tools";
      const title = figure.querySelector("figcaption strong").textContent;
      const buttons = [["+", "Zoom in", () => this.zoom(0.5)], ["−", "Zoom out", () => this.zoom(2)], ["Reset", "Reset zoom", () => this.reset()]];
      for (const [text, label, act] of buttons) {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = text;
        button.setAttribute("aria-label", `${label}: ${title}`);
        button.addEventListener("click", act);
        tools.append(button);
      }
      this.readout.after(tools);
    }
  }

  // Also for pages that bring in new parts: it takes what it has not seen yet.
  const start = (part) => {
    for (const figure of part.querySelectorAll("figure.chart:not([data-ready])")) {
      figure.dataset.ready = "1";
      new Chart(figure);
    }
  };
  window.crunodeCharts = start;

  themes();
  start(document);
  window.addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details:not([open])")) {
      fold.open = true;
      fold.dataset.folded = "1";
    }
  });
  window.addEventListener("afterprint", () => {
    for (const fold of document.querySelectorAll("details[data-folded]")) {
      fold.open = false;
      delete fold.dataset.folded;
    }
  });
})();
