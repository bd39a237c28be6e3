// The requests that wait, and until when.
//
// Proxy-Wasm has no timer for a stream, only one tick for all of a configuration. All waits of one
// configuration are of one length, so the first that came is the first that goes.

/// One stream that waits.
export class Wait {
  constructor(public stream: u32, public end: u64, public aborted: bool) {}
}

/// The streams that wait.
export class Waiting {
  private waits: Array<Wait> = new Array<Wait>();

  empty(): bool {
    return this.waits.length == 0;
  }

  /// `stream` waits until `end`, in nanoseconds, and then goes on, or is aborted.
  add(stream: u32, end: u64, aborted: bool): void {
    this.waits.push(new Wait(stream, end, aborted));
  }

  /// `stream` waits no more, if it did.
  remove(stream: u32): void {
    for (let i = 0; i < this.waits.length; i++) {
      if (this.waits[i].stream == stream) {
        this.waits.splice(i, 1);
        return;
      }
    }
  }

  /// The streams whose wait is over; they wait no more.
  takeDue(now: u64): Array<Wait> {
    let count = 0;
    while (count < this.waits.length && this.waits[count].end <= now) {
      count++;
    }
    return this.waits.splice(0, count);
  }
}
