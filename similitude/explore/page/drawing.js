// A board to draw on.

// Colours of signed weights, as explore/pictures.py has them.
const BELOW = [179, 88, 6], ABOVE = [84, 39, 136];

// A board of pixels that a pen, a finger or keys draw on; pixels that are not touched keep their exact values.
export function drawing(canvas, shape, onStroke) {
  const [height, width] = shape.slice(-2), paper = canvas.getContext("2d"), image = paper.createImageData(width, height);
  canvas.width = width;
  canvas.height = height;
  const board = { pixels: new Float64Array(shape.reduce((a, b) => a * b, 1)), ink: 1, size: 2, touched: false, set, x: width >> 1, y: height >> 1 };
  let signed = false, full = 1;
  const planes = board.pixels.length / (width * height);
  // Ink is 1 on images, and the largest weight on signed ones, which are purple above 0 and orange below.
  const colour = (value, c) => (signed ? 247 + Math.min(1, Math.abs(value) / full) * ((value > 0 ? ABOVE : BELOW)[c] - 247) : 255 * Math.min(1, Math.max(0, value)));
  function show() {
    for (let i = 0; i < width * height; i++) {
      for (let c = 0; c < 3; c++) image.data[4 * i + c] = colour(board.pixels[(planes === 3 ? c : 0) * width * height + i], c);
      image.data[4 * i + 3] = 255;
    }
    paper.putImageData(image, 0, 0);
  }
  function set(values) {
    board.pixels = Float64Array.from(values);
    board.touched = false;
    signed ||= board.pixels.some((value) => value < 0);
    full = signed ? Math.max(...board.pixels.map(Math.abs)) || full : 1;
    show();
  }
  function dot(x, y) {
    board.touched = true;
    for (let dy = 0; dy < board.size; dy++) for (let dx = 0; dx < board.size; dx++) {
      const [px, py] = [x + dx - (board.size >> 1), y + dy - (board.size >> 1)];
      if (px < 0 || py < 0 || px >= width || py >= height) continue;
      for (let c = 0; c < planes; c++) board.pixels[c * width * height + py * width + px] = board.ink * full;
    }
  }
  function to(event, start) {
    const box = canvas.getBoundingClientRect(), [x, y] = [((event.clientX - box.left) / box.width) * width, ((event.clientY - box.top) / box.height) * height];
    const [fromX, fromY] = start ? [x, y] : [board.x, board.y], steps = Math.max(1, Math.ceil(Math.hypot(x - fromX, y - fromY)));
    for (let s = 0; s <= steps; s++) dot(Math.floor(fromX + ((x - fromX) * s) / steps), Math.floor(fromY + ((y - fromY) * s) / steps));
    [board.x, board.y] = [x, y];
    show();
  }
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); to(event, true); });
  canvas.addEventListener("pointerup", () => onStroke());
  canvas.addEventListener("pointermove", (event) => { if (event.buttons) to(event, false); });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (move) [board.x, board.y] = [Math.min(width - 1, Math.max(0, Math.floor(board.x) + move[0])), Math.min(height - 1, Math.max(0, Math.floor(board.y) + move[1]))];
    if (event.key === " ") {
      dot(Math.floor(board.x), Math.floor(board.y));
      onStroke();
    }
    if (!move && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    show();
    image.data.set([255, 120, 0, 255], 4 * (Math.floor(board.y) * width + Math.floor(board.x)));
    paper.putImageData(image, 0, 0);
  });
  return board;
}
