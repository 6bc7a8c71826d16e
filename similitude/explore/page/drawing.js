// A board to draw on.

// Colours of signed weights, as explore/pictures.py has them.
const BELOW = [179, 88, 6], ABOVE = [84, 39, 136];

// How much of a pen of some width lies on each pixel of a straight stroke, from 0 to 1, with soft edges. Coordinates are
// those of pixels, whose centres are whole numbers.
export function strokeOf(height, width, [x, y], [toX, toY], pen) {
  const [right, down] = [toX - x, toY - y], length = right ** 2 + down ** 2, found = new Float64Array(height * width);
  for (let row = 0; row < height; row++) {
    for (let column = 0; column < width; column++) {
      const along = length ? Math.min(1, Math.max(0, ((row - y) * down + (column - x) * right) / length)) : 0;
      const away = Math.hypot(row - y - along * down, column - x - along * right);
      found[row * width + column] = Math.min(1, Math.max(0, pen / 2 + 0.5 - away));
    }
  }
  return found;
}

// A board of pixels that a pen, a finger or keys draw on; pixels that are not touched keep their exact values.
//
// Ink is relative to the board's full ink: 1 on images, the largest weight on signed ones, where it may be below 0. A
// stroke makes no pixel fainter; an ink of 0 erases.
export function drawing(canvas, shape, onStroke) {
  const [height, width] = shape.slice(-2), paper = canvas.getContext("2d"), image = paper.createImageData(width, height);
  canvas.width = width;
  canvas.height = height;
  const board = { pixels: new Float64Array(shape.reduce((a, b) => a * b, 1)), ink: 1, size: 2, touched: false, signed: false, set };
  let full = 1, pen = [width >> 1, height >> 1], before = null, start = pen;
  const area = width * height, planes = board.pixels.length / area;
  // Signed weights are purple above 0 and orange below.
  const colour = (value, c) => (board.signed ? 247 + Math.min(1, Math.abs(value) / full) * ((value > 0 ? ABOVE : BELOW)[c] - 247) : 255 * Math.min(1, Math.max(0, value)));
  function show() {
    for (let i = 0; i < area; i++) {
      for (let c = 0; c < 3; c++) image.data[4 * i + c] = colour(board.pixels[(planes === 3 ? c : 0) * area + i], c);
      image.data[4 * i + 3] = 255;
    }
    paper.putImageData(image, 0, 0);
  }
  function set(values) {
    board.pixels = Float64Array.from(values);
    board.touched = false;
    board.signed ||= board.pixels.some((value) => value < 0);
    full = board.signed ? Math.max(...board.pixels.map(Math.abs)) || full : 1;
    show();
  }
  function draw(from, to) {
    const stroke = strokeOf(height, width, from, to, board.size), ink = board.ink * full;
    stroke.forEach((share, i) => {
      if (!share) return;
      for (let at = i; at < board.pixels.length; at += area) {
        const value = board.pixels[at];
        board.pixels[at] = ink > 0 ? Math.max(value, ink * share) : ink < 0 ? Math.min(value, ink * share) : value * (1 - share);
      }
    });
    board.touched = true;
    show();
  }
  function place(event) {
    const box = canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * width - 0.5, ((event.clientY - box.top) / box.height) * height - 0.5];
  }
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    before = board.pixels.slice();
    start = pen = place(event);
    draw(pen, pen);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!event.buttons || !before) return;
    const to = place(event);
    // With Shift the stroke is a straight line from where it began.
    if (event.shiftKey) board.pixels = before.slice();
    draw(event.shiftKey ? start : pen, to);
    pen = to;
  });
  canvas.addEventListener("pointerup", () => {
    before = null;
    onStroke();
  });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!move && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    const [x, y] = pen.map(Math.round);
    pen = move ? [Math.min(width - 1, Math.max(0, x + move[0])), Math.min(height - 1, Math.max(0, y + move[1]))] : [x, y];
    if (!move) {
      draw(pen, pen);
      onStroke();
    }
    show();
    image.data.set([255, 120, 0, 255], 4 * (pen[1] * width + pen[0]));
    paper.putImageData(image, 0, 0);
  });
  return board;
}
