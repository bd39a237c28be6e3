// The configuration, checked and prepared.
//
// config.schema.json says the same to those who have a schema's reader; this holds where nobody has looked
// at the schema. Nothing here throws: in AssemblyScript that ends the VM.

import { HeaderPair, Headers } from "@solo-io/proxy-runtime";

import { Json, Kind, parse } from "./json";

/// What goes wrong with requests.
export class Config {
  delays: bool = false;
  delayNanoseconds: u64 = 0;
  /// Share of the requests, from 0 to 100.
  delayPercentage: f64 = 100;

  aborts: bool = false;
  status: u32 = 0;
  /// Share of the requests, from 0 to 100.
  abortPercentage: f64 = 100;
  body: string = "";
  headers: Headers = [];

  /// What is wrong with the configuration, for whoever wrote it; empty when nothing is.
  wrong: string = "";

  /// Notes what is wrong, unless something else has been.
  refuse(reason: string): void {
    if (this.wrong == "") {
      this.wrong = reason;
    }
  }
}

/// Reads the configuration; `wrong` says what is wrong with it.
export function readConfig(text: string): Config {
  let config = new Config();
  let document = parse(text);
  if (document.kind == Kind.Wrong) {
    config.refuse("configuration: " + document.text);
    return config;
  }
  if (document.kind != Kind.Object) {
    config.refuse("configuration: an object is expected");
    return config;
  }
  for (let i = 0; i < document.names.length; i++) {
    let name = document.names[i];
    let value = document.items[i];
    if (value.kind == Kind.Null) {
      continue;
    }
    if (name == "delay") {
      readDelay(config, value);
    } else if (name == "abort") {
      readAbort(config, value);
    } else {
      config.refuse("configuration: `" + name + "` is unknown; there are `delay` and `abort`");
    }
  }
  if (!config.delays && !config.aborts) {
    config.refuse("nothing to inject: `delay` or `abort` must be there");
  }
  return config;
}

function readDelay(config: Config, value: Json): void {
  config.delays = true;
  if (value.kind != Kind.Object) {
    config.refuse("`delay`: an object is expected");
    return;
  }
  let milliseconds: f64 = 0;
  for (let i = 0; i < value.names.length; i++) {
    let name = value.names[i];
    if (name == "milliseconds") {
      milliseconds = number(config, "delay.milliseconds", value.items[i]);
    } else if (name == "percentage") {
      config.delayPercentage = percentage(config, "delay.percentage", value.items[i]);
    } else {
      config.refuse("`delay." + name + "` is unknown; there are `milliseconds` and `percentage`");
    }
  }
  if (!(milliseconds >= 1 && milliseconds <= 3600000 && milliseconds == Math.floor(milliseconds))) {
    config.refuse("`delay.milliseconds` must be a whole number from 1 to 3600000");
    return;
  }
  config.delayNanoseconds = <u64>milliseconds * 1000000;
}

function readAbort(config: Config, value: Json): void {
  config.aborts = true;
  if (value.kind != Kind.Object) {
    config.refuse("`abort`: an object is expected");
    return;
  }
  let status: f64 = 0;
  let contentType = "text/plain";
  for (let i = 0; i < value.names.length; i++) {
    let name = value.names[i];
    let item = value.items[i];
    if (name == "status") {
      status = number(config, "abort.status", item);
    } else if (name == "percentage") {
      config.abortPercentage = percentage(config, "abort.percentage", item);
    } else if (name == "body") {
      config.body = text(config, "abort.body", item);
    } else if (name == "headers" && item.kind == Kind.Object) {
      for (let j = 0; j < item.names.length; j++) {
        let header = item.names[j].toLowerCase();
        let content = text(config, "abort.headers." + header, item.items[j]);
        if (!isHeaderName(header)) {
          config.refuse("`abort.headers`: `" + header + "` cannot be a header's name");
        } else if (hasControls(content)) {
          config.refuse("`abort.headers." + header + "` has control characters");
        } else if (header == "content-type") {
          contentType = content;
        } else {
          config.headers.push(new HeaderPair(String.UTF8.encode(header), String.UTF8.encode(content)));
        }
      }
    } else if (name == "headers") {
      config.refuse("`abort.headers`: an object is expected");
    } else {
      config.refuse("`abort." + name + "` is unknown; there are `status`, `percentage`, `body` and `headers`");
    }
  }
  if (!(status >= 200 && status <= 599 && status == Math.floor(status))) {
    config.refuse("`abort.status` must be a whole number from 200 to 599");
    return;
  }
  config.status = <u32>status;
  config.headers.push(new HeaderPair(String.UTF8.encode("content-type"), String.UTF8.encode(contentType)));
}

function number(config: Config, key: string, value: Json): f64 {
  if (value.kind != Kind.Number) {
    config.refuse("`" + key + "`: a number is expected");
    return 0;
  }
  return value.number;
}

function percentage(config: Config, key: string, value: Json): f64 {
  let share = number(config, key, value);
  if (!(share >= 0 && share <= 100)) {
    config.refuse("`" + key + "` is " + share.toString() + "; it can be 0 to 100");
  }
  return share;
}

function text(config: Config, key: string, value: Json): string {
  if (value.kind != Kind.Text) {
    config.refuse("`" + key + "`: text is expected");
    return "";
  }
  return value.text;
}

/// What RFC 9110 allows in a header's name.
function isHeaderName(name: string): bool {
  for (let i = 0; i < name.length; i++) {
    let code = name.charCodeAt(i);
    let letterOrDigit = (code >= 0x61 && code <= 0x7a) || (code >= 0x30 && code <= 0x39);
    if (!letterOrDigit && !"!#$%&'*+.^_`|~-".includes(name.charAt(i))) {
      return false;
    }
  }
  return name.length > 0;
}

/// Whether there are control characters other than a tab.
function hasControls(value: string): bool {
  for (let i = 0; i < value.length; i++) {
    let code = value.charCodeAt(i);
    if ((code < 0x20 && code != 0x09) || code == 0x7f) {
      return true;
    }
  }
  return false;
}
