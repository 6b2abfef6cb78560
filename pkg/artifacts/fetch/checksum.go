package fetch

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// How HookOS names what it publishes: "latest-lts" in a name is kernel 6.6, else it is 5.10.
const (
	both      = "both"
	kernel510 = "5.10"
	kernel66  = "6.6"
	lts       = "latest-lts"
)

const (
	maxChecksums     = 1 << 20 // bytes of a checksum.txt
	maxChecksumLines = 10000
)

// errMalformed is a list of checksums that cannot be read. All of it is refused: half a list is a smaller release.
var errMalformed = errors.New("malformed list of checksums")

// parseChecksums reads what sha512sum (or sha256sum) writes: digest, space, space or asterisk, name.
func parseChecksums(text []byte) (map[string]digest, error) {
	sums := map[string]digest{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimRight(lines.Text(), "\r\t ")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		sum, rest, found := strings.Cut(line, " ")
		name := strings.TrimPrefix(strings.TrimLeft(rest, " "), "*")
		name = strings.TrimPrefix(name, "./")
		var d digest
		switch raw, err := hex.DecodeString(sum); {
		case err != nil || !found:
			return nil, fmt.Errorf("%w: line %d does not begin with a digest", errMalformed, n)
		case len(raw) == 64:
			d = digest("sha512:" + strings.ToLower(sum))
		case len(raw) == 32:
			d = digest("sha256:" + strings.ToLower(sum))
		default:
			return nil, fmt.Errorf("%w: line %d has a digest of %d bits, neither SHA-512 nor SHA-256",
				errMalformed, n, 8*len(raw))
		}
		if !validName(name) || strings.Contains(name, "/") {
			return nil, fmt.Errorf("%w: line %d has the name %q", errMalformed, n, name)
		}
		if other, ok := sums[name]; ok && other != d {
			return nil, fmt.Errorf("%w: line %d has another digest for %q", errMalformed, n, name)
		}
		sums[name] = d
		if n > maxChecksumLines {
			return nil, fmt.Errorf("%w: more than %d lines", errMalformed, maxChecksumLines)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	return sums, nil
}

// wants says whether the set takes an artifact of this name.
func (s *Set) wants(name string) bool {
	if len(s.Names) > 0 {
		for _, pattern := range s.Names {
			if ok, err := path.Match(pattern, name); ok && err == nil {
				return true
			}
		}
		return false
	}
	arch := strings.Contains(name, "x86_64") && s.Arch != "aarch64" ||
		strings.Contains(name, "aarch64") && s.Arch != "x86_64"
	kernel := s.KernelVersion == both || strings.Contains(name, lts) == (s.KernelVersion != kernel510)
	extension := strings.HasSuffix(name, ".tar.gz") && s.Extension != "iso" ||
		strings.HasSuffix(name, ".iso") && s.Extension != "tar.gz"
	return arch && kernel && extension
}

// extractable says whether the name is that of an archive that can be extracted.
func extractable(name string) bool {
	return strings.HasSuffix(name, ".tar.gz") || strings.HasSuffix(name, ".tgz") || strings.HasSuffix(name, ".tar")
}

// validName says whether a name is a relative path without dots at any part's beginning, so that it can neither
// lead out nor be one that is never served.
func validName(name string) bool {
	if !fs.ValidPath(name) || name == "." || len(name) > 1024 || strings.ContainsAny(name, "\\\x00\n") {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if strings.HasPrefix(part, ".") || len(part) > 255 {
			return false
		}
	}
	return true
}
