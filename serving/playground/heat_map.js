// A square of numbers -> a picture of it, as wide as there is room.

import { element } from "./elements.js";

const LARGEST = 30; // pixels of a cell
const LEGIBLE = 11; // pixels from which on a cell has room for the name of its token
const NAME = 76; // pixels for the names of tokens

/** A picture of [from][to]; tells which cell the pointer is on, and which row was pressed. */
export class HeatMap {
  #names;
  #weights = [];
  #marked = null;
  #cell = 0;
  #margin = 0;

  constructor(names, { onPoint, onPick }) {
    this.#names = names;
    this.canvas = element("canvas", {
      role: "img",
      "aria-label": "Attention weights of all pairs of tokens; the tokens above list the same numbers",
      onpointermove: (event) => onPoint(...(this.#cellAt(event) ?? [])),
      onpointerleave: () => onPoint(),
      onclick: (event) => this.#cellAt(event) && onPick(this.#cellAt(event)[0]),
    });
    this.node = element("div", { class: "heat-map" }, this.canvas);
    new ResizeObserver(() => this.#paint()).observe(this.node);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const repaint = () => {
      if (this.node.isConnected) this.#paint();
      else scheme.removeEventListener("change", repaint); // it is painted when it is shown again
    };
    scheme.addEventListener("change", repaint);
  }

  /** Shows other numbers. */
  draw(weights) {
    this.#weights = weights;
    this.#paint();
  }

  /** Puts a frame around a row. */
  mark(row) {
    this.#marked = row;
    this.#paint();
  }

  #paint() {
    const count = this.#names.length;
    const width = this.node.clientWidth;
    if (!width || !this.#weights.length) return;
    const named = Math.min(LARGEST, Math.floor((width - NAME) / count));
    this.#margin = named >= LEGIBLE ? NAME : 0;
    // Without names, a whole text has to fit on a phone.
    this.#cell = this.#margin ? named : Math.min(LARGEST, width / count);
    const size = this.#margin + this.#cell * count;
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = Math.ceil(size * scale);
    this.canvas.height = Math.ceil(size * scale);
    this.canvas.style.width = `${size}px`;
    this.canvas.style.height = `${size}px`;
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    const style = getComputedStyle(this.node);
    this.#paintCells(context, style);
    if (this.#margin) this.#paintNames(context, style);
    if (this.#marked !== null) {
      context.strokeStyle = style.getPropertyValue("--mark");
      context.lineWidth = 2;
      const top = this.#margin + this.#marked * this.#cell;
      context.strokeRect(this.#margin + 1, top, this.#cell * count - 2, this.#cell);
    }
  }

  #paintCells(context, style) {
    const largest = Math.max(...this.#weights.map((row) => Math.max(...row))) || 1;
    const gap = this.#cell > 6 ? 1 : 0;
    context.fillStyle = style.getPropertyValue("--accent");
    this.#weights.forEach((row, from) => {
      row.forEach((weight, to) => {
        context.globalAlpha = 0.03 + 0.97 * Math.sqrt(weight / largest);
        context.fillRect(
          this.#margin + to * this.#cell,
          this.#margin + from * this.#cell,
          this.#cell - gap,
          this.#cell - gap,
        );
      });
    });
    context.globalAlpha = 1;
  }

  #paintNames(context, style) {
    const size = Math.min(13, this.#cell - 1);
    context.font = `${size}px ${style.fontFamily}`;
    context.fillStyle = style.color;
    context.textBaseline = "middle";
    this.#names.forEach((name, place) => {
      const middle = this.#margin + (place + 0.5) * this.#cell;
      context.textAlign = "right";
      context.fillText(name, this.#margin - 5, middle, this.#margin - 6);
      context.save();
      context.translate(middle, this.#margin - 5);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillText(name, 0, 0, this.#margin - 6);
      context.restore();
    });
  }

  #cellAt(event) {
    const count = this.#names.length;
    const place = (offset) => Math.floor((offset - this.#margin) / this.#cell);
    const [from, to] = [place(event.offsetY), place(event.offsetX)];
    const isInside = (each) => each >= 0 && each < count;
    return isInside(from) && isInside(to) ? [from, to] : null;
  }
}
