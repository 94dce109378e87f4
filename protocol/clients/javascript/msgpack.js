// The headers of messages: msgpack with text keys, as protocol/README.md limits it.
//
// In flows: plain objects. Out flow: Uint8Array in the golden form (shortest integers; what is a `Real` as float 64);
// and back, from any valid form. What is no such header is an Error. Nothing here needs Node.

const DEEPEST = 8;
const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true });

/** A number whose field is of type *number* or *seconds*: it travels as float 64, whole or not. */
export class Real {
  constructor(value) {
    this.value = Number(value);
  }
}

/** A header as bytes; keys in their order, those that are undefined left out. */
export function encode(header) {
  const bytes = [];
  put(bytes, header);
  return Uint8Array.from(bytes);
}

/** The header in `raw`. */
export function decode(raw) {
  const reader = new Reader(raw);
  const header = reader.value(1);
  if (reader.at !== raw.length || header === null || typeof header !== "object" || Array.isArray(header)) throw wrong();
  return header;
}

function put(bytes, value) {
  if (value === null) bytes.push(0xc0);
  else if (typeof value === "boolean") bytes.push(value ? 0xc3 : 0xc2);
  else if (value instanceof Real) big(bytes, 0xcb, 8, (view) => view.setFloat64(0, value.value));
  else if (typeof value === "number") whole(bytes, value);
  else if (typeof value === "string") {
    const text = encoder.encode(value);
    size(bytes, text.length, 0xa0, 32, [0xd9, 0xda, 0xdb]);
    for (const byte of text) bytes.push(byte);
  } else if (Array.isArray(value)) {
    size(bytes, value.length, 0x90, 16, [undefined, 0xdc, 0xdd]);
    for (const one of value) put(bytes, one);
  } else {
    const pairs = Object.entries(value).filter(([, one]) => one !== undefined);
    size(bytes, pairs.length, 0x80, 16, [undefined, 0xde, 0xdf]);
    for (const [key, one] of pairs) {
      put(bytes, key);
      put(bytes, one);
    }
  }
}

function whole(bytes, value) {
  if (!Number.isSafeInteger(value)) throw new Error(`${value} is no count; wrap numbers in Real`);
  if (value >= -32 && value < 128) bytes.push(value & 0xff);
  else if (value >= 0 && value < 256) bytes.push(0xcc, value);
  else if (value >= 0 && value < 65536) big(bytes, 0xcd, 2, (view) => view.setUint16(0, value));
  else if (value >= 0 && value <= 0xffffffff) big(bytes, 0xce, 4, (view) => view.setUint32(0, value));
  else if (value >= 0) big(bytes, 0xcf, 8, (view) => view.setBigUint64(0, BigInt(value)));
  else big(bytes, 0xd3, 8, (view) => view.setBigInt64(0, BigInt(value)));
}

function size(bytes, length, tag, below, tags) {
  if (length < below) bytes.push(tag | length);
  else if (length < 256 && tags[0]) bytes.push(tags[0], length);
  else if (length < 65536) big(bytes, tags[1], 2, (view) => view.setUint16(0, length));
  else big(bytes, tags[2], 4, (view) => view.setUint32(0, length));
}

function big(bytes, tag, width, write) {
  const piece = new Uint8Array(width);
  write(new DataView(piece.buffer));
  bytes.push(tag, ...piece);
}

function wrong() {
  return new Error("a header came that is no msgpack within the limits of protocol/README.md");
}

class Reader {
  constructor(raw) {
    this.raw = raw;
    this.view = new DataView(raw.buffer, raw.byteOffset, raw.byteLength);
    this.at = 0;
  }

  value(depth) {
    const tag = this.count(1);
    if (tag < 0x80) return tag;
    if (tag >= 0xe0) return tag - 256;
    if (tag < 0x90) return this.map(tag & 0x0f, depth);
    if (tag < 0xa0) return this.list(tag & 0x0f, depth);
    if (tag < 0xc0) return this.text(tag & 0x1f);
    switch (tag) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xca: return this.view.getFloat32(this.skip(4));
      case 0xcb: return this.view.getFloat64(this.skip(8));
      case 0xcc: case 0xcd: case 0xce: case 0xcf: return this.count(1 << (tag - 0xcc));
      case 0xd0: return this.view.getInt8(this.skip(1));
      case 0xd1: return this.view.getInt16(this.skip(2));
      case 0xd2: return this.view.getInt32(this.skip(4));
      case 0xd3: return Number(this.view.getBigInt64(this.skip(8)));
      case 0xd9: case 0xda: case 0xdb: return this.text(this.count(1 << (tag - 0xd9)));
      case 0xdc: case 0xdd: return this.list(this.count(2 << (tag - 0xdc)), depth);
      case 0xde: case 0xdf: return this.map(this.count(2 << (tag - 0xde)), depth);
      default: throw wrong();
    }
  }

  list(length, depth) {
    this.within(length, depth);
    return Array.from({ length }, () => this.value(depth + 1));
  }

  map(length, depth) {
    this.within(length, depth);
    const found = Object.create(null);
    while (length--) {
      const key = this.value(depth + 1);
      if (typeof key !== "string") throw wrong();
      found[key] = this.value(depth + 1);
    }
    return found;
  }

  text(length) {
    const start = this.skip(length);
    return decoder.decode(this.raw.subarray(start, start + length));
  }

  /** An element has a byte at least: whoever announces more than there are is not believed. */
  within(length, depth) {
    if (length > this.raw.length - this.at || depth > DEEPEST) throw wrong();
  }

  count(width) {
    const start = this.skip(width);
    if (width === 1) return this.view.getUint8(start);
    if (width === 2) return this.view.getUint16(start);
    return width === 4 ? this.view.getUint32(start) : Number(this.view.getBigUint64(start));
  }

  skip(width) {
    if (width > this.raw.length - this.at) throw wrong();
    this.at += width;
    return this.at - width;
  }
}
