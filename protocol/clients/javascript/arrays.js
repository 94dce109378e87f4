// What an agent sees and does, as numbers, from and to the arrays in frames: little-endian, in C order, one column
// behind another. Integers beyond 2^53 are rounded: a number holds no more. Nothing here needs Node.

/** What the actor refused: `code` is for programs (protocol/README.md, What is refused of simulators). */
export class Fault extends Error {
  constructor(code, reason) {
    super(`${reason} (${code})`);
    this.name = "Fault";
    this.code = code;
  }
}

const KINDS = {
  f2: [2, (view, at, x) => view.setUint16(at, half(x), true), (view, at) => unhalf(view.getUint16(at, true))],
  f4: [4, (view, at, x) => view.setFloat32(at, x, true), (view, at) => view.getFloat32(at, true)],
  f8: [8, (view, at, x) => view.setFloat64(at, x, true), (view, at) => view.getFloat64(at, true)],
  b1: [1, (view, at, x) => view.setUint8(at, x ? 1 : 0), (view, at) => view.getUint8(at)],
  i1: [1, (view, at, x) => view.setInt8(at, x), (view, at) => view.getInt8(at)],
  i2: [2, (view, at, x) => view.setInt16(at, x, true), (view, at) => view.getInt16(at, true)],
  i4: [4, (view, at, x) => view.setInt32(at, x, true), (view, at) => view.getInt32(at, true)],
  i8: [8, (view, at, x) => view.setBigInt64(at, BigInt(x), true), (view, at) => Number(view.getBigInt64(at, true))],
  u1: [1, (view, at, x) => view.setUint8(at, x), (view, at) => view.getUint8(at)],
  u2: [2, (view, at, x) => view.setUint16(at, x, true), (view, at) => view.getUint16(at, true)],
  u4: [4, (view, at, x) => view.setUint32(at, x, true), (view, at) => view.getUint32(at, true)],
  u8: [8, (view, at, x) => view.setBigUint64(at, BigInt(x), true), (view, at) => Number(view.getBigUint64(at, true))],
};

const FLOATS = /f\d$/;

function wrong(number, column, whose) {
  return new Fault("value", `${whose} has ${number}, which is no number of type ${column.dtype}`);
}

/** A `number` of `agent`, called `name`, that can be sent; NaN and what is no number would come to be 0 else. */
export function finite(number, agent, name = "the reward") {
  if (!Number.isFinite(number)) throw new Fault("value", `${agent}: ${name} is ${number}, which is no finite number`);
  return number;
}

function checked(number, column, whose) {
  if (typeof number === "boolean" || (FLOATS.test(column.dtype) ? Number.isFinite(number) : Number.isInteger(number)))
    return number;
  throw wrong(number, column, whose);
}

/** The `numbers` of all `columns`, one column behind another, as bytes; `whose` they are is for a Fault. */
export function pack(columns, numbers, whose) {
  const wanted = columns.reduce((sum, column) => sum + itemsOf(column), 0);
  if (numbers.length !== wanted) {
    const listed = columns.map((column) => `${itemsOf(column)} of ${column.name}`).join(", ") || "it has no columns";
    throw new Fault("size", `${whose} should be ${wanted} numbers, not ${numbers.length}: ${listed}`);
  }
  const bytes = new Uint8Array(columns.reduce((sum, column) => sum + itemsOf(column) * kindOf(column)[0], 0));
  const view = new DataView(bytes.buffer);
  let at = 0, next = 0;
  for (const column of columns) {
    const [width, write, read] = kindOf(column);
    for (let i = itemsOf(column); i--; at += width) {
      const number = numbers[next++];
      write(view, at, checked(number, column, whose));
      const held = read(view, at);
      if (FLOATS.test(column.dtype) ? !Number.isFinite(held) : held !== Number(number)) throw wrong(number, column, whose);
    }
  }
  return bytes;
}

/** The numbers of `columns` that begin at byte `at` of `frame`, and the byte behind them. */
export function unpack(columns, frame, at) {
  const view = new DataView(frame.buffer, frame.byteOffset, frame.byteLength);
  const numbers = [];
  for (const column of columns) {
    const [width, , read] = kindOf(column);
    for (let i = itemsOf(column); i--; at += width) numbers.push(read(view, at));
  }
  return [numbers, at];
}

/** Pieces as one. */
export function joined(pieces) {
  const whole = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

function itemsOf(column) {
  return column.shape.reduce((product, size) => product * size, 1);
}

function kindOf(column) {
  const kind = KINDS[column.dtype.slice(1)];
  if (!kind) throw new Error(`the actor speaks of arrays of type ${column.dtype}, which this client does not know`);
  return kind;
}

/** IEEE 754 binary16: a sign, five bits of exponent, ten of fraction. */
function half(number) {
  const sign = Object.is(Math.sign(number), -0) || number < 0 ? 0x8000 : 0;
  const size = Math.abs(number);
  if (Number.isNaN(number)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  const exponent = Math.max(size > 0 ? Math.floor(Math.log2(size)) : -14, -14);
  return sign | (even(size * 2 ** (10 - exponent)) + ((exponent + 14) << 10));
}

function unhalf(bits) {
  const exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const size = exponent === 31 ? (fraction ? NaN : Infinity)
    : (exponent ? 1024 + fraction : fraction) * 2 ** (Math.max(exponent, 1) - 25);
  return bits >> 15 ? -size : size;
}

/** The nearest whole number, the even one of two. */
function even(number) {
  const low = Math.floor(number);
  return number - low === 0.5 ? low + (low % 2) : Math.round(number);
}
