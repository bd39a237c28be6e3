---@meta
-- What Outrider's Lua plugins can call, for editors with lua-language-server. Nothing runs this file.
-- docs/lua-sdk.md says more of each function, docs/envoy-lua.md of Envoy's handles.

---@alias outrider.Scalar string|number|boolean
---@alias outrider.Fields table<string, string|string[]> names to values; a table where there are several
---@alias outrider.MetadataSource "dynamic"|"route"|"cluster"|"host"|"locality"

---A plugin's table of handlers, which its entry file returns.
---@class outrider.Handler
---@field version? "v2"
---@field on_configure? fun(self: outrider.Handler, config: table): (boolean?, string?) once for each configuration
---@field on_request_header? fun(self: outrider.Handler, end_of_stream: boolean)
---@field on_request_body? fun(self: outrider.Handler, end_of_stream: boolean)
---@field on_request_trailer? fun(self: outrider.Handler, end_of_stream: boolean)
---@field on_response_header? fun(self: outrider.Handler, end_of_stream: boolean)
---@field on_response_body? fun(self: outrider.Handler, end_of_stream: boolean)
---@field on_response_trailer? fun(self: outrider.Handler, end_of_stream: boolean)
---@field on_log? fun(self: outrider.Handler) when the stream is over

envoy = {}

---@class outrider.Message what `envoy.req` and `envoy.resp` have in common
local message = {}

---@class outrider.Request: outrider.Message
envoy.req = {}

---@class outrider.Response: outrider.Message
envoy.resp = {}

---The first value of a header.
---@param name string
---@return string?
function message.get_header(name) end

---A value of a header, counted from 0.
---@param name string
---@param index integer
---@return string?
function message.get_header_index(name, index) end

---How many values a header has.
---@param name string
---@return integer
function message.get_header_size(name) end

---@return outrider.Fields
function message.get_headers() end

---How many headers there are, each value counted.
---@return integer
function message.get_header_map_size() end

---Replaces all values of a header by one.
---@param name string
---@param value outrider.Scalar
function message.set_header(name, value) end

---@param name string
---@param value outrider.Scalar
function message.add_header(name, value) end

---Replaces all headers; pseudo headers that are not named stay.
---@param headers outrider.Fields
function message.set_headers(headers) end

---Removes all values of a header.
---@param name string
function message.clear_header(name) end

---Removes all values of a header.
---@param name string
function message.remove_header(name) end

---The first value of a trailer.
---@param name string
---@return string?
function message.get_trailer(name) end

---A value of a trailer, counted from 0.
---@param name string
---@param index integer
---@return string?
function message.get_trailer_index(name, index) end

---How many values a trailer has.
---@param name string
---@return integer
function message.get_trailer_size(name) end

---@return outrider.Fields
function message.get_trailers() end

---How many trailers there are, each value counted.
---@return integer
function message.get_trailer_map_size() end

---@param name string
---@param value outrider.Scalar
function message.set_trailer(name, value) end

---@param name string
---@param value outrider.Scalar
function message.add_trailer(name, value) end

---Replaces all trailers.
---@param headers outrider.Fields
function message.set_trailers(headers) end

---@param name string
function message.clear_trailer(name) end

---@param name string
function message.remove_trailer(name) end

---The body, or the chunk, that the handler is called for. In version 1: waits for it, and returns an object.
---@return string?
function message.get_body() end

---Its length in bytes; nil where there is no body.
---@return integer?
function message.get_body_size() end

---A part of it, as `string.sub` would take it.
---@param first integer
---@param last? integer
---@return string?
function message.get_body_bytes(first, last) end

---@param body outrider.Scalar
function message.set_body(body) end

---@param body outrider.Scalar
function message.append_body(body) end

---@param body outrider.Scalar
function message.prepend_body(body) end

---Removes so many bytes from the front.
---@param length integer
function message.drain_body(length) end

---A value of the route's metadata.
---@param key string
---@param filter_name string
---@return outrider.Scalar?
function message.get_metadata(key, filter_name) end

---A value of the stream's metadata.
---@param key string
---@param filter_name string
---@return outrider.Scalar?
function message.get_dynamic_metadata(key, filter_name) end

---@param key string
---@param value outrider.Scalar|table
---@param filter_name string
function message.set_dynamic_metadata(key, value, filter_name) end

---The parameters of the path's query, percent-decoded.
---@param max_args? integer from 1 to 10000; 100 when left out
---@return outrider.Fields
function envoy.req.get_query_parameters(max_args) end

---Has Envoy choose the route anew.
function envoy.req.clear_route_cache() end

---Has the request go to this endpoint of its upstream.
---@param address string `ip:port`
---@param strict? boolean fail where it is not there
function envoy.req.set_upstream_override_host(address, strict) end

---The effective configuration: gateway, project and route merged. Not to be changed.
---@return table
function envoy.config() end

---The gateway's part of the configuration.
---@return table?
function envoy.get_base_config() end

---What project and route say.
---@return table?
function envoy.get_route_config() end

---Ends the stream with a response; nothing after it runs.
---@param headers table<string, outrider.Scalar|outrider.Scalar[]> with `":status"`
---@param body? outrider.Scalar
---@param details? outrider.Scalar what access logs show
function envoy.respond(headers, body, details) end

---Sends a request to an upstream and waits for the response.
---@param cluster string
---@param headers table<string, outrider.Scalar|outrider.Scalar[]> with `:method`, `:path`, `:authority`
---@param body? outrider.Scalar
---@param timeout number milliseconds
---@return outrider.Fields? headers nil when it failed
---@return string body or why it failed
function envoy.httpCall(cluster, headers, body, timeout) end

---Waits, and holds up no other stream.
---@param milliseconds number
function envoy.sleep(milliseconds) end

envoy.callout = {}

---@class outrider.CallOptions
---@field cluster string
---@field path string
---@field method? string `GET` when left out
---@field authority? string
---@field headers? table<string, outrider.Scalar|outrider.Scalar[]>
---@field body? outrider.Scalar
---@field timeout_ms? number
---@field end_stream? boolean of a stream: nothing more is sent

---@class outrider.Callout
local Callout = {}
---@return outrider.Fields? headers nil when it failed
---@return string body or why it failed
function Callout:wait() end
---@return boolean
function Callout:done() end
function Callout:cancel() end

---@class outrider.HttpStream
local HttpStream = {}
---@param data string
---@param end_stream? boolean
---@return boolean?
---@return string? reason
function HttpStream:send(data, end_stream) end
---@param trailers outrider.Fields
---@return boolean?
---@return string? reason
function HttpStream:send_trailers(trailers) end
---@param timeout? number milliseconds
---@return outrider.Fields?
---@return string? reason
function HttpStream:headers(timeout) end
---@param timeout? number milliseconds
---@return string?
---@return string? reason
function HttpStream:read(timeout) end
---@return fun(): string?
function HttpStream:chunks() end
---@param timeout? number milliseconds
---@return string?
---@return string? reason
function HttpStream:read_all(timeout) end
---@param timeout? number milliseconds
---@return outrider.Fields?
---@return string? reason
function HttpStream:trailers(timeout) end
---@return boolean
function HttpStream:done() end
function HttpStream:close() end

---Sends a request and does not wait.
---@param options outrider.CallOptions
---@return outrider.Callout
function envoy.callout.start(options) end

---Sends a request whose response does not matter.
---@param options outrider.CallOptions
---@return boolean?
---@return string? reason
function envoy.callout.send(options) end

---@param handles outrider.Callout[]
---@param timeout? number milliseconds
---@return boolean?
---@return string? reason
function envoy.callout.wait_all(handles, timeout) end

---@param handles outrider.Callout[]
---@param timeout? number milliseconds
---@return outrider.Callout?
---@return integer|string place or why there is none
function envoy.callout.wait_any(handles, timeout) end

---Opens a request that goes, and is answered, in parts.
---@param options outrider.CallOptions
---@return outrider.HttpStream
function envoy.callout.stream(options) end

envoy.timer = {}

---@class outrider.Timer
local Timer = {}
function Timer:cancel() end

---@param delay number milliseconds
---@param run fun()
---@return outrider.Timer?
---@return string? reason
function envoy.timer.after(delay, run) end

---@param delay number milliseconds
---@param run fun()
---@return outrider.Timer?
---@return string? reason
function envoy.timer.every(delay, run) end

---@class outrider.Stream
---@field shared table a table of the stream's own
envoy.stream = {}

---One of Envoy's attributes by its name.
---@param name string
---@return outrider.Scalar?
function envoy.attribute(name) end

envoy.streaminfo = {}

---@return string? address `ip:port`
function envoy.streaminfo.downstream_remote_address() end

---@return string? address `ip:port` of the connection's other end
function envoy.streaminfo.downstream_direct_remote_address() end

---@return string? address `ip:port`
function envoy.streaminfo.downstream_local_address() end

---@return string? address `ip:port`, once one is chosen
function envoy.streaminfo.upstream_host() end

---@return string?
function envoy.streaminfo.upstream_cluster() end

---@return string?
function envoy.streaminfo.upstream_local_address() end

---@return string?
function envoy.streaminfo.route_name() end

---@return string? protocol `HTTP/1.1`, `HTTP/2`, …
function envoy.streaminfo.protocol() end

---@return string?
function envoy.streaminfo.request_id() end

---@return string?
function envoy.streaminfo.requested_server_name() end

---@return string?
function envoy.streaminfo.response_code_details() end

---@return number?
function envoy.streaminfo.attempt_count() end

---In `on_log`: how long the stream took, in milliseconds.
---@return number?
function envoy.streaminfo.duration() end

---@return integer?
function envoy.streaminfo.response_code() end

---Milliseconds since 1970.
---@return number
function envoy.streaminfo.start_time() end

---Milliseconds since 1970.
---@return number
function envoy.streaminfo.current_time_milliseconds() end

---@class outrider.Timing milliseconds since the stream began; what has not happened is missing
---@field complete? number
---@field first_upstream_sent? number
---@field last_upstream_sent? number
---@field first_upstream_received? number
---@field last_upstream_received? number
---@field first_downstream_sent? number
---@field last_downstream_sent? number

---@return outrider.Timing
function envoy.streaminfo.timing() end

---Milliseconds since 1970.
---@return number
function envoy.nowms() end

envoy.connection = {}

---@class outrider.Tls
---@field peer_presented boolean
---@field version? string
---@field server_name? string
---@field subject? string
---@field uri_san? string
---@field dns_san? string
---@field sha256? string
---@field local_subject? string
---@field local_uri_san? string
---@field local_dns_san? string

---@return outrider.Tls? tls nil for a plaintext connection
function envoy.connection.tls() end

envoy.metadata = {}

---@param namespace string
---@param key string
---@param source? outrider.MetadataSource `"dynamic"` when left out
---@return outrider.Scalar|outrider.Scalar[]|nil
function envoy.metadata.get(namespace, key, source) end

---@param namespace string
---@param key string
---@param value outrider.Scalar|table
function envoy.metadata.set(namespace, key, value) end

---@param namespace string
---@param source? outrider.MetadataSource
---@return string[]
function envoy.metadata.keys(namespace, source) end

---@param source? outrider.MetadataSource
---@return string[]
function envoy.metadata.namespaces(source) end

envoy.filter_state = {}

---@param key string
---@return string?
function envoy.filter_state.get(key) end

---@param key string
---@param value outrider.Scalar
function envoy.filter_state.set(key, value) end

---@param key string one that Envoy knows
---@param value outrider.Scalar
function envoy.filter_state.set_typed(key, value) end

---@param message any
function envoy.logTrace(message) end

---@param message any
function envoy.logDebug(message) end

---@param message any
function envoy.logInfo(message) end

---@param message any
function envoy.logWarn(message) end

---@param message any
function envoy.logErr(message) end

---Writes a line to the plugin's own file.
---@param message outrider.Scalar
function envoy.filelog(message) end

---Defines a metric, while the plugin loads; finds it later.
---@param kind 0|1|2 counter, gauge, histogram
---@param name string
---@return integer id -1 when it failed
---@return string? reason
function envoy.define_metric(kind, name) end

---@param id integer
---@param amount? number
function envoy.increment_metric(id, amount) end

---@param id integer
---@param value number
function envoy.record_metric(id, value) end

---@param id integer
---@return number value -1 when there is none
function envoy.get_metric(id) end

---@class outrider.Json
---@field null table
envoy.json = {}

---@param value any
---@return string
function envoy.json.encode(value) end

---@param document string
---@return any value nil when it is none
---@return string? reason
function envoy.json.decode(document) end

---An integer of any size, which is encoded as these digits. It can be compared with others, and made a text; not calculated with.
---@param digits string
---@return table
function envoy.json.integer(digits) end

---Marks a table, so that it is encoded as an array.
---@generic T: table
---@param values T
---@return T
function envoy.json.array(values) end

envoy.base64 = {}

---@param bytes string
---@return string
function envoy.base64.encode(bytes) end

---@param encoded string
---@return string?
---@return string? reason
function envoy.base64.decode(encoded) end

envoy.crypto = {}

---@param bytes string
---@return string digest
function envoy.crypto.sha1(bytes) end

---@param bytes string
---@return string digest
function envoy.crypto.sha256(bytes) end

---@param bytes string
---@return string digest
function envoy.crypto.sha384(bytes) end

---@param bytes string
---@return string digest
function envoy.crypto.sha512(bytes) end

---@param key string
---@param bytes string
---@return string code
function envoy.crypto.hmac_sha1(key, bytes) end

---@param key string
---@param bytes string
---@return string code
function envoy.crypto.hmac_sha256(key, bytes) end

---@param key string
---@param bytes string
---@return string code
function envoy.crypto.hmac_sha384(key, bytes) end

---@param key string
---@param bytes string
---@return string code
function envoy.crypto.hmac_sha512(key, bytes) end

---Whether they are equal, in a time that does not tell where they differ.
---@param first string
---@param second string
---@return boolean
function envoy.crypto.constant_time_equals(first, second) end

---@param bytes string
---@return string
function envoy.crypto.hex(bytes) end

---@param digits string
---@return string?
---@return string? reason
function envoy.crypto.unhex(digits) end

---A public key (PEM or DER) as DER.
---@param key string
---@return string?
---@return string? reason
function envoy.crypto.import_public_key(key) end

---@param hash "sha1"|"sha224"|"sha256"|"sha384"|"sha512"|nil nil for Ed25519
---@param key string PEM or DER
---@param signature string
---@param bytes string
---@return boolean
---@return string? reason
function envoy.crypto.verify_signature(hash, key, signature, bytes) end

---A random UUID.
---@return string
function envoy.uuid() end

envoy.time = {}

---Milliseconds since 1970.
---@return number
function envoy.time.now() end

---Milliseconds since some moment; never set back.
---@return number
function envoy.time.monotonic() end

---@param moment? number now, when left out
---@return string
function envoy.time.rfc3339(moment) end

---@param moment? number now, when left out
---@return string
function envoy.time.http_date(moment) end

---@param value string
---@return number? moment
---@return string? reason
function envoy.time.parse_rfc3339(value) end

---@param value string
---@return number? moment
---@return string? reason
function envoy.time.parse_http_date(value) end

envoy.url = {}

---@param value string
---@return string
function envoy.url.encode(value) end

---@param value string
---@return string
function envoy.url.decode(value) end

---@param query string
---@param max_args? integer
---@return outrider.Fields
function envoy.url.parse_query(query, max_args) end

---@param parameters table<string, outrider.Scalar|outrider.Scalar[]>
---@return string
function envoy.url.build_query(parameters) end

envoy.re = {}

---@param subject string
---@param pattern string
---@return boolean
function envoy.re.match(subject, pattern) end

---@param subject string
---@param pattern string
---@param init? integer
---@return integer? first
---@return integer? last
function envoy.re.find(subject, pattern, init) end

---The groups of the first match; `[0]` is all of it.
---@param subject string
---@param pattern string
---@param init? integer
---@return table<integer|string, string|false>?
function envoy.re.captures(subject, pattern, init) end

---@param subject string
---@param pattern string
---@param replacement string
---@param limit? integer
---@return string
---@return integer count
function envoy.re.replace(subject, pattern, replacement, limit) end

envoy.json_schema = {}

---@class outrider.JsonSchema
local schema = {}

---@param schema table|string
---@return outrider.JsonSchema
function envoy.json_schema.compile(schema) end

---@param document string
---@return boolean
---@return string[]? messages
function schema:validate(document) end

envoy.shared = {}

---@param key string
---@return outrider.Scalar?
function envoy.shared.get(key) end

---@param key string
---@param value outrider.Scalar
---@param ttl? number milliseconds
function envoy.shared.set(key, value, ttl) end

---@param key string
---@param value outrider.Scalar
---@param ttl? number milliseconds
---@return boolean added
function envoy.shared.add(key, value, ttl) end

---@param key string
---@param amount? number
---@param initial? number
---@param ttl? number milliseconds
---@return number
function envoy.shared.incr(key, amount, initial, ttl) end

---Takes tokens from a bucket.
---@param key string
---@param capacity number
---@param interval number milliseconds until it gets one more
---@param amount? number
---@return boolean taken
---@return number left or in how many milliseconds there will be enough
function envoy.shared.take(key, capacity, interval, amount) end

---@param key string
---@return boolean was_there
function envoy.shared.delete(key) end

---@param key string
---@return number? milliseconds
function envoy.shared.ttl(key) end

-- Scripts for Envoy's Lua filter.

EnvoyTimestampResolution = { MILLISECOND = 0, MICROSECOND = 1 }

---@class envoy.Object what all of Envoy's objects have
local Object = {}
---@param message string
function Object:logTrace(message) end
---@param message string
function Object:logDebug(message) end
---@param message string
function Object:logInfo(message) end
---@param message string
function Object:logWarn(message) end
---@param message string
function Object:logErr(message) end
---@param message string
function Object:logCritical(message) end

---@class envoy.Headers: envoy.Object goes with `pairs`
local Headers = {}
---@param name string
---@return string? value all values, joined with `,`
function Headers:get(name) end
---@param name string
---@param index integer counted from 0
---@return string?
function Headers:getAtIndex(name, index) end
---@param name string
---@return integer
function Headers:getNumValues(name) end
---@param name string
---@param value string|number
function Headers:add(name, value) end
---@param name string
---@param value string|number
function Headers:replace(name, value) end
---@param name string
function Headers:remove(name) end
---Has no effect in Outrider.
---@param phrase string
function Headers:setHttp1ReasonPhrase(phrase) end

---@class envoy.Buffer: envoy.Object
local Buffer = {}
---@return integer
function Buffer:length() end
---@param index integer counted from 0
---@param length integer
---@return string
function Buffer:getBytes(index, length) end
---@param bytes string
---@return integer
function Buffer:setBytes(bytes) end

---@class envoy.Metadata: envoy.Object goes with `pairs`
local Metadata = {}
---@param key string
---@return any
function Metadata:get(key) end

---@class envoy.DynamicMetadata: envoy.Object goes with `pairs`
local DynamicMetadata = {}
---@param name string
---@return table?
function DynamicMetadata:get(name) end
---@param name string
---@param key string
---@param value any
function DynamicMetadata:set(name, key, value) end

---@class envoy.FilterState: envoy.Object
local FilterState = {}
---@param name string
---@param field? string
---@return string?
function FilterState:get(name, field) end
---@param name string
---@param factory string
---@param value string
function FilterState:set(name, factory, value) end

---@class envoy.ParsedName: envoy.Object
local ParsedName = {}
---@return string
function ParsedName:commonName() end
---@return string[]
function ParsedName:organizationName() end

---@class envoy.Ssl: envoy.Object
local Ssl = {}
---@return boolean
function Ssl:peerCertificatePresented() end
---@return string
function Ssl:sha256PeerCertificateDigest() end
---@return string
function Ssl:subjectPeerCertificate() end
---@return string
function Ssl:subjectLocalCertificate() end
---@return string
function Ssl:tlsVersion() end
---@return envoy.ParsedName?
function Ssl:parsedSubjectPeerCertificate() end
---@return string[]
function Ssl:uriSanPeerCertificate() end
---@return string[]
function Ssl:uriSanLocalCertificate() end
---@return string[]
function Ssl:dnsSansPeerCertificate() end
---@return string[]
function Ssl:dnsSansLocalCertificate() end

---@class envoy.StreamInfo: envoy.Object
local StreamInfo = {}
---@return string
function StreamInfo:protocol() end
---@return string
function StreamInfo:routeName() end
---@return string
function StreamInfo:virtualClusterName() end
---@return string
function StreamInfo:downstreamLocalAddress() end
---@return string
function StreamInfo:downstreamDirectLocalAddress() end
---@return string
function StreamInfo:downstreamRemoteAddress() end
---@return string
function StreamInfo:downstreamDirectRemoteAddress() end
---@return string
function StreamInfo:requestedServerName() end
---@return envoy.DynamicMetadata
function StreamInfo:dynamicMetadata() end
---@param name string
---@return nil
function StreamInfo:dynamicTypedMetadata(name) end
---@return envoy.FilterState
function StreamInfo:filterState() end
---@return envoy.Ssl?
function StreamInfo:downstreamSslConnection() end

---@class envoy.ConnectionStreamInfo: envoy.Object
local ConnectionStreamInfo = {}
---@return envoy.Metadata
function ConnectionStreamInfo:dynamicMetadata() end
---@param name string
---@return nil
function ConnectionStreamInfo:dynamicTypedMetadata(name) end

---@class envoy.Connection: envoy.Object
local Connection = {}
---@return envoy.Ssl?
function Connection:ssl() end

---@class envoy.Route: envoy.Object
local Route = {}
---@return envoy.Metadata
function Route:metadata() end

---@class envoy.PublicKey: envoy.Object
local PublicKey = {}
---@return string?
function PublicKey:get() end

---@class envoy.Counter: envoy.Object
local Counter = {}
function Counter:inc() end
---@param value number
function Counter:add(value) end
---@return number
function Counter:value() end

---@class envoy.Gauge: envoy.Object
local Gauge = {}
function Gauge:inc() end
function Gauge:dec() end
---@param value number
function Gauge:add(value) end
---@param value number
function Gauge:sub(value) end
---@param value number
function Gauge:set(value) end
---@return number
function Gauge:value() end

---@class envoy.Histogram: envoy.Object
local Histogram = {}
---@param value number
function Histogram:recordValue(value) end

---@class envoy.Stats: envoy.Object
local Stats = {}
---@param name string
---@return envoy.Counter
function Stats:counter(name) end
---@param name string
---@return envoy.Gauge
function Stats:gauge(name) end
---@param name string
---@param unit? "ms"|"milliseconds"|"microseconds"|"nanoseconds"|"bytes"|"unspecified"
---@return envoy.Histogram
function Stats:histogram(name, unit) end

---@class envoy.CallOptions
---@field asynchronous? boolean
---@field timeout_ms? number
---@field trace_sampled? boolean
---@field return_duplicate_headers? boolean
---@field send_xff? boolean

---What `envoy_on_request` and `envoy_on_response` are given.
---@class envoy.Handle: envoy.Object
local Handle = {}
---@return envoy.Headers
function Handle:headers() end
---@return envoy.Headers
function Handle:requestHeaders() end
---Waits for the whole body.
---@param always_wrap? boolean
---@return envoy.Buffer?
function Handle:body(always_wrap) end
---@return fun(): envoy.Buffer?
function Handle:bodyChunks() end
---@return envoy.Headers?
function Handle:trailers() end
---@param cluster string
---@param headers table<string, string|number|string[]>
---@param body? string
---@param options number|envoy.CallOptions the time in milliseconds, or options
---@param asynchronous? boolean
---@return table<string, string|string[]> headers
---@return string? body
function Handle:httpCall(cluster, headers, body, options, asynchronous) end
---@param headers table<string, string|number|string[]>
---@param body? string
function Handle:respond(headers, body) end
---@return envoy.Metadata
function Handle:metadata() end
---@return envoy.Route
function Handle:route() end
---@return envoy.Route
function Handle:virtualHost() end
---@return envoy.Metadata
function Handle:filterContext() end
---@return envoy.StreamInfo
function Handle:streamInfo() end
---@return envoy.Connection
function Handle:connection() end
---@return envoy.ConnectionStreamInfo
function Handle:connectionStreamInfo() end
---@param address string
---@param strict? boolean
function Handle:setUpstreamOverrideHost(address, strict) end
function Handle:clearRouteCache() end
---@return envoy.Stats
function Handle:stats() end
---@param der string
---@param length integer
---@return envoy.PublicKey
function Handle:importPublicKey(der, length) end
---@param digest string
---@param key string
---@param signature string
---@param signature_length integer
---@param data string
---@param data_length integer
---@return boolean
---@return string?
function Handle:verifySignature(digest, key, signature, signature_length, data, data_length) end
---@param value string
---@return string
function Handle:base64Escape(value) end
---@param value string
---@return string?
function Handle:base64Decode(value) end
---@param resolution? integer
---@return number milliseconds
function Handle:timestamp(resolution) end
---@param resolution? integer
---@return string
function Handle:timestampString(resolution) end

---@param handle envoy.Handle
function envoy_on_request(handle) end

---@param handle envoy.Handle
function envoy_on_response(handle) end
