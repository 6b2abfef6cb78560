package fetch

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// How HookOS names what it publishes: "latest-lts" in a name is kernel 6.6, else it is 5.10. "tar.gz" has kernel and
// initramfs, of which machines load over the network; "iso" is for virtual media.
const (
	both      = "both"
	kernel510 = "5.10"
	kernel66  = "6.6"
	lts       = "latest-lts"
	archX86   = "x86_64"
	archARM   = "aarch64"
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

// choose returns the names of the release that the set takes, sorted. Without KernelVersion it is 6.6 where the
// release has that, and else 5.10, which is all that releases before 0.9 have.
func (s *Set) choose(sums map[string]digest) []string {
	for _, kernel := range []string{cmp.Or(s.KernelVersion, kernel66), cmp.Or(s.KernelVersion, kernel510)} {
		var chosen []string
		for name := range sums {
			if s.wants(name, kernel) {
				chosen = append(chosen, name)
			}
		}
		if len(chosen) > 0 {
			return slices.Sorted(slices.Values(chosen))
		}
	}
	return nil
}

// named reports whether one of the set's patterns takes the name.
func (s *Set) named(name string) bool {
	return slices.ContainsFunc(s.Names, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return ok && err == nil
	})
}

// wants reports whether the set takes an artifact of this name, where it wants that kernel.
func (s *Set) wants(name, version string) bool {
	if len(s.Names) > 0 {
		return s.named(name)
	}
	arch := strings.Contains(name, archX86) && s.Arch != archARM || strings.Contains(name, archARM) && s.Arch != archX86
	kernel := version == both || strings.Contains(name, lts) == (version == kernel66)
	extension := strings.HasSuffix(name, ".tar.gz") && s.Extension != "iso" ||
		strings.HasSuffix(name, ".iso") && (s.Extension == "iso" || s.Extension == both)
	return arch && kernel && extension
}

// missing says which architecture or extension, of those that the set names, none of its artifacts is for.
func (s *Set) missing(chosen []string) error {
	if len(s.Names) > 0 {
		return nil
	}
	wanted := map[string]string{"tar.gz": ".tar.gz", "iso": ".iso"}
	parts := []string{s.Extension, s.Arch}
	if s.Arch == both {
		parts = append(parts, archX86, archARM)
	}
	for _, part := range parts {
		if part == "" || part == both {
			continue
		}
		of := cmp.Or(wanted[part], part)
		if !slices.ContainsFunc(chosen, func(name string) bool { return strings.Contains(name, of) }) {
			return fmt.Errorf("%w: the release lists no %s", errNoMatch, part)
		}
	}
	return nil
}

// directory is where an artifact's files go. Where 6.6 and 5.10 are both wanted, the names that Smee asks for are
// 6.6's, as with Tinkerbell's chart, and 5.10 has a directory for itself.
func (s *Set) directory(name string, sums map[string]digest) string {
	_, twin := sums[strings.Replace(name, "_", "_"+lts+"-", 1)]
	if s.KernelVersion == both && twin && len(s.Names) == 0 {
		return path.Join(s.Path, kernel510)
	}
	return s.Path
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
