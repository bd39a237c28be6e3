// Chance. `Math.random` would need an import of AssemblyScript's own, which no Proxy-Wasm host has.

import { get_current_time_nanoseconds } from "@solo-io/proxy-runtime/runtime";

let state: u64 = 0;

/// A number from 0 up to, but not, 1: xorshift64*, by Marsaglia and Vigna. The seed is the time of the first
/// request, for no host function may be called while a module starts.
function random(): f64 {
  if (state == 0) {
    state = get_current_time_nanoseconds() | 1;
  }
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  let mixed = state * 0x2545f4914f6cdd1d;
  return <f64>(mixed >> 11) / 9007199254740992.0;
}

/// Whether this request is one of `percentage` in a hundred: 0 means never, 100 always.
export function struck(percentage: f64): bool {
  return random() * 100.0 < percentage;
}
