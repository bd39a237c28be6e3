package main

import (
	"encoding/base64"
	"strings"
)

// credentials takes the value of an authorization header apart (RFC 7617). It is not ok when the scheme is
// not Basic, or what follows it is not base64 of a name, a colon and a password.
func credentials(value string) (name, password string, ok bool) {
	scheme, encoded, found := strings.Cut(strings.TrimRight(value, " "), " ")
	if !found || !strings.EqualFold(scheme, "basic") {
		return "", "", false
	}
	decoded, err := base64.StdEncoding.Strict().DecodeString(strings.TrimLeft(encoded, " "))
	if err != nil {
		return "", "", false
	}
	// Only the name cannot contain a colon.
	return strings.Cut(string(decoded), ":")
}

// equal says whether two texts are equal, in a time that depends on the length of given alone: a comparison
// that stops at the first difference tells a patient client how much of a secret it has guessed.
func equal(given, secret string) bool {
	difference := len(given) ^ len(secret)
	for i := 0; i < len(given); i++ {
		difference |= int(given[i] ^ secret[i%len(secret)])
	}
	return difference == 0
}
