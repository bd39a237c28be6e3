// Faults on purpose: a delay, an error, or a delay and then an error.

export * from "@solo-io/proxy-runtime/proxy";

import { Context, FilterHeadersStatusValues, LogLevelValues, RootContext, WasmResultValues } from "@solo-io/proxy-runtime";
import { continue_request, log, proxy_set_effective_context, registerRootContext } from "@solo-io/proxy-runtime";
import {
  BufferTypeValues,
  GrpcStatusValues,
  get_buffer_bytes,
  get_current_time_nanoseconds,
  send_local_response,
  set_tick_period_milliseconds,
} from "@solo-io/proxy-runtime/runtime";

import { Config, readConfig } from "./config";
import { struck } from "./dice";
import { Waiting } from "./waiting";

/// How often the plugin looks whose wait is over, while anybody waits, in milliseconds. Requests go on late
/// by up to this.
const TICK: u32 = 5;

/// One configuration of the plugin.
class FaultInjection extends RootContext {
  config: Config = new Config();
  waiting: Waiting = new Waiting();

  // Not the base class's: 0.1.8 has the host write the configuration's length to a wrong address.
  onConfigure(size: u32): bool {
    let text = "{}";
    if (size > 0) {
      text = String.UTF8.decode(get_buffer_bytes(BufferTypeValues.PluginConfiguration, 0, size));
    }
    this.config = readConfig(text);
    if (this.config.wrong != "") {
      log(LogLevelValues.error, this.config.wrong);
      return false;
    }
    return true;
  }

  onTick(): void {
    let due = this.waiting.takeDue(get_current_time_nanoseconds());
    if (this.waiting.empty()) {
      set_tick_period_milliseconds(0);
    }
    for (let i = 0; i < due.length; i++) {
      // A tick belongs to no stream; what follows is to happen to this one.
      if (proxy_set_effective_context(due[i].stream) != WasmResultValues.Ok) {
        continue;
      }
      if (due[i].aborted) {
        this.sendAbort();
      } else {
        continue_request();
      }
    }
  }

  createContext(id: u32): Context {
    return new Request(id, this);
  }

  /// Answers the current request.
  sendAbort(): void {
    let config = this.config;
    send_local_response(
      config.status,
      "outrider.fault-injection.abort",
      String.UTF8.encode(config.body),
      config.headers,
      GrpcStatusValues.InvalidCode
    );
  }
}

/// One request.
class Request extends Context {
  plugin: FaultInjection;

  constructor(id: u32, plugin: FaultInjection) {
    super(id, plugin);
    this.plugin = plugin;
  }

  onRequestHeaders(count: u32, endOfStream: bool): FilterHeadersStatusValues {
    let plugin = this.plugin;
    let config = plugin.config;
    let aborted = config.aborts && struck(config.abortPercentage);
    if (config.delays && struck(config.delayPercentage)) {
      if (plugin.waiting.empty()) {
        set_tick_period_milliseconds(TICK);
      }
      plugin.waiting.add(this.context_id, get_current_time_nanoseconds() + config.delayNanoseconds, aborted);
      return FilterHeadersStatusValues.StopAllIterationAndWatermark;
    }
    if (aborted) {
      plugin.sendAbort();
      return FilterHeadersStatusValues.StopAllIterationAndWatermark;
    }
    return FilterHeadersStatusValues.Continue;
  }

  // The base class's handlers for these write a debug line each, and build it whether or not it is wanted.
  onLog(): void {}

  onDone(): bool {
    return true;
  }

  /// A client may go while its request waits.
  onDelete(): void {
    this.plugin.waiting.remove(this.context_id);
  }
}

function create(id: u32): RootContext {
  return new FaultInjection(id);
}

// The SDK finds a plugin by the root id that the proxy's configuration says.
registerRootContext(create, "");
registerRootContext(create, "fault-injection");
