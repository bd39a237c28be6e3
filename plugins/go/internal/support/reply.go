package support

import (
	"encoding/binary"
	"unsafe"
)

// noGrpcStatus is "none of its own": the proxy derives one where the request is gRPC.
const noGrpcStatus = -1

// The SDK's SendHttpResponse has no place for a response-code detail, so this is the same host function.
//
//go:wasmimport env proxy_send_local_response
func sendLocalResponse(statusCode uint32, details *byte, detailsSize int32, body *byte, bodySize int32,
	headers *byte, headersSize int32, grpcStatus int32) uint32

// Reply ends the current stream with this status, these headers and this body, instead of asking the
// upstream. details is what access logs show as response-code detail; without spaces. After it, a callback
// has to return types.ActionPause.
//
// It returns whether the proxy took it: it does not where the response is already on its way.
func Reply(status uint32, headers [][2]string, body, details string) bool {
	pairs := serialized(headers)
	return sendLocalResponse(status,
		unsafe.StringData(details), int32(len(details)),
		unsafe.StringData(body), int32(len(body)),
		unsafe.SliceData(pairs), int32(len(pairs)),
		noGrpcStatus) == 0
}

// serialized is a header map as the ABI has it: how many pairs, the lengths of each, then keys and values,
// each with a NUL behind it.
func serialized(headers [][2]string) []byte {
	size := 4
	for _, header := range headers {
		size += 8 + len(header[0]) + 1 + len(header[1]) + 1
	}
	pairs := make([]byte, 0, size)
	pairs = binary.LittleEndian.AppendUint32(pairs, uint32(len(headers)))
	for _, header := range headers {
		pairs = binary.LittleEndian.AppendUint32(pairs, uint32(len(header[0])))
		pairs = binary.LittleEndian.AppendUint32(pairs, uint32(len(header[1])))
	}
	for _, header := range headers {
		for _, text := range header {
			pairs = append(pairs, text...)
			pairs = append(pairs, 0)
		}
	}
	return pairs
}
