// A reader of JSON (RFC 8259), for configurations. It never throws: what is wrong comes as a value.

/// What a value is.
export enum Kind {
  /// Nothing that could be read; `text` says why.
  Wrong,
  Null,
  Boolean,
  Number,
  Text,
  Array,
  Object,
}

/// A value.
export class Json {
  kind: Kind;
  /// Of a text; of what is wrong: why.
  text: string = "";
  /// Of a number; of a boolean 0 or 1.
  number: f64 = 0;
  /// Of an array or an object.
  items: Array<Json> = new Array<Json>();
  /// Of an object, as many as `items`. A name that comes twice is there twice.
  names: Array<string> = new Array<string>();

  constructor(kind: Kind) {
    this.kind = kind;
  }
}

/// How deep arrays and objects may be in one another: each takes from the guest's stack.
const DEEPEST: i32 = 32;

/// Reads the one value that `text` is.
export function parse(text: string): Json {
  let reader = new Reader(text);
  let value = reader.value(0);
  reader.space();
  if (value.kind != Kind.Wrong && !reader.atEnd()) {
    return reader.wrong("there is something after its end");
  }
  return value;
}

class Reader {
  private position: i32 = 0;

  constructor(private text: string) {}

  atEnd(): bool {
    return this.position >= this.text.length;
  }

  wrong(reason: string): Json {
    let value = new Json(Kind.Wrong);
    value.text = reason + ", at character " + (this.position + 1).toString();
    return value;
  }

  /// The character code that comes next, 0 at the end.
  private peek(): i32 {
    return this.atEnd() ? 0 : this.text.charCodeAt(this.position);
  }

  /// Passes over `expected`, if it comes next.
  private take(expected: string): bool {
    if (!this.text.startsWith(expected, this.position)) {
      return false;
    }
    this.position += expected.length;
    return true;
  }

  space(): void {
    while (!this.atEnd()) {
      let code = this.peek();
      if (code != 0x20 && code != 0x09 && code != 0x0a && code != 0x0d) {
        return;
      }
      this.position++;
    }
  }

  value(depth: i32): Json {
    this.space();
    let code = this.peek();
    if (depth > DEEPEST) {
      return this.wrong("it is nested too deep");
    }
    if (code == 0x7b) {
      return this.members(depth, Kind.Object, "}");
    }
    if (code == 0x5b) {
      return this.members(depth, Kind.Array, "]");
    }
    if (code == 0x22) {
      return this.string();
    }
    if (code == 0x2d || isDigit(code)) {
      return this.digits();
    }
    if (this.take("null")) {
      return new Json(Kind.Null);
    }
    let value = new Json(Kind.Boolean);
    if (this.take("true")) {
      value.number = 1;
      return value;
    }
    if (this.take("false")) {
      return value;
    }
    if (this.atEnd()) {
      return this.wrong("it ends too early");
    }
    return this.wrong("a value is expected");
  }

  /// An array or an object.
  private members(depth: i32, kind: Kind, end: string): Json {
    let value = new Json(kind);
    this.position++;
    this.space();
    if (this.take(end)) {
      return value;
    }
    while (true) {
      if (kind == Kind.Object) {
        this.space();
        if (this.peek() != 0x22) {
          return this.wrong("a name in quotes is expected");
        }
        let name = this.string();
        if (name.kind == Kind.Wrong) {
          return name;
        }
        value.names.push(name.text);
        this.space();
        if (!this.take(":")) {
          return this.wrong("a colon is expected");
        }
      }
      let item = this.value(depth + 1);
      if (item.kind == Kind.Wrong) {
        return item;
      }
      value.items.push(item);
      this.space();
      if (this.take(end)) {
        return value;
      }
      if (!this.take(",")) {
        return this.wrong("a comma or `" + end + "` is expected");
      }
    }
  }

  private string(): Json {
    let value = new Json(Kind.Text);
    this.position++;
    let start = this.position;
    while (!this.atEnd()) {
      let code = this.peek();
      if (code == 0x22) {
        value.text += this.text.substring(start, this.position);
        this.position++;
        return value;
      }
      if (code < 0x20) {
        return this.wrong("a control character in a text must be escaped");
      }
      if (code == 0x5c) {
        value.text += this.text.substring(start, this.position);
        this.position++;
        let escaped = this.escape();
        if (escaped < 0) {
          return this.wrong("this escape is unknown");
        }
        value.text += String.fromCharCode(escaped);
        start = this.position;
      } else {
        this.position++;
      }
    }
    return this.wrong("a text is not closed");
  }

  /// The character code that an escape stands for, past its backslash; -1 for none.
  private escape(): i32 {
    let code = this.peek();
    this.position++;
    if (code == 0x22 || code == 0x5c || code == 0x2f) {
      return code;
    }
    if (code == 0x62) {
      return 0x08;
    }
    if (code == 0x66) {
      return 0x0c;
    }
    if (code == 0x6e) {
      return 0x0a;
    }
    if (code == 0x72) {
      return 0x0d;
    }
    if (code == 0x74) {
      return 0x09;
    }
    if (code != 0x75) {
      return -1;
    }
    let unit = 0;
    for (let i = 0; i < 4; i++) {
      let digit = hexadecimal(this.peek());
      if (digit < 0) {
        return -1;
      }
      unit = unit * 16 + digit;
      this.position++;
    }
    return unit;
  }

  private digits(): Json {
    let start = this.position;
    this.take("-");
    if (!this.take("0") && !this.run()) {
      return this.wrong("a digit is expected");
    }
    if (this.take(".") && !this.run()) {
      return this.wrong("a digit is expected");
    }
    if (this.take("e") || this.take("E")) {
      if (!this.take("+")) {
        this.take("-");
      }
      if (!this.run()) {
        return this.wrong("a digit is expected");
      }
    }
    let value = new Json(Kind.Number);
    value.number = parseFloat(this.text.substring(start, this.position));
    return value;
  }

  /// Passes over digits; whether there were any.
  private run(): bool {
    let start = this.position;
    while (isDigit(this.peek())) {
      this.position++;
    }
    return this.position > start;
  }
}

function isDigit(code: i32): bool {
  return code >= 0x30 && code <= 0x39;
}

/// The value of a hexadecimal digit, -1 for none.
function hexadecimal(code: i32): i32 {
  if (isDigit(code)) {
    return code - 0x30;
  }
  let lower = code | 0x20;
  return lower >= 0x61 && lower <= 0x66 ? lower - 0x61 + 10 : -1;
}
