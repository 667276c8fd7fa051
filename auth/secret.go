package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// A secret is SecretPrefix and secretBytes random bytes in lower-case hexadecimal: people and
// scanners of source code recognise one, and a double click selects all of it.
const (
	SecretPrefix = "annals_"
	secretBytes  = 32
	secretLength = len(SecretPrefix) + 2*secretBytes
)

// hashPrefix begins a hash in a token file.
const hashPrefix = "sha256:"

// Hash is the SHA-256 of a secret.
type Hash [sha256.Size]byte

// Generate returns a new secret of 256 random bits.
func Generate() string {
	var b [secretBytes]byte
	_, _ = rand.Read(b[:]) // it never fails: the process ends instead
	return SecretPrefix + hex.EncodeToString(b[:])
}

// WellFormed reports whether a text has the form of a secret.
func WellFormed(secret string) bool {
	if len(secret) != secretLength || secret[:len(SecretPrefix)] != SecretPrefix {
		return false
	}
	for i := len(SecretPrefix); i < len(secret); i++ {
		if c := secret[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// HashOf returns the hash of a secret.
func HashOf(secret string) Hash { return sha256.Sum256([]byte(secret)) }

// String returns the hash as token files have it.
func (h Hash) String() string { return hashPrefix + hex.EncodeToString(h[:]) }

// Short is enough of the hash to tell tokens apart in a log: 8 hexadecimal digits.
func (h Hash) Short() string { return hex.EncodeToString(h[:4]) }

// ParseHash reads what String wrote.
func ParseHash(text string) (Hash, error) {
	var h Hash
	if strings.HasPrefix(text, SecretPrefix) {
		return h, fmt.Errorf("it is a token, not the hash of one: the file must not hold secrets. Replace the token, and write %sHEX", hashPrefix)
	}
	digits, ok := strings.CutPrefix(text, hashPrefix)
	if !ok || len(digits) != 2*len(h) {
		return h, fmt.Errorf("it must be %s and %d hexadecimal digits", hashPrefix, 2*len(h))
	}
	if _, err := hex.Decode(h[:], []byte(digits)); err != nil {
		return h, fmt.Errorf("it must be %s and %d hexadecimal digits", hashPrefix, 2*len(h))
	}
	return h, nil
}
