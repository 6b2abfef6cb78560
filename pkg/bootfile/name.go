package bootfile

import (
	"encoding/hex"
	"net"
	"path"
	"regexp"
	"strings"
)

// mostName is the longest name that is looked up, in bytes.
const mostName = 1024

// clean turns a name as firmware writes it (\EFI\Boot\x.efi, //x.efi, ./x.efi) into a path below the directory. It
// reports false for what can be none: with a part "..", or one that begins with a dot, or a directory.
func clean(asked string) (string, bool) {
	if len(asked) > mostName || strings.ContainsRune(asked, 0) {
		return "", false
	}
	slashed := strings.ReplaceAll(asked, `\`, "/")
	if strings.HasSuffix(slashed, "/") {
		return "", false
	}
	var parts []string
	for part := range strings.SplitSeq(slashed, "/") {
		switch {
		case part == "", part == ".":
		case part[0] == '.':
			return "", false
		default:
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "/"), len(parts) > 0
}

// fold makes the names equal that differ in the case of ASCII letters, or in how a machine's directory is written.
func fold(name string) string {
	first, rest, deeper := strings.Cut(name, "/")
	if deeper {
		if mac, ok := parseMAC(first); ok {
			return mac + "/" + lower(rest)
		}
	}
	return lower(name)
}

// lower is strings.ToLower for ASCII: other letters have no one way to be folded.
func lower(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, s)
}

// parseMAC reads a MAC or an EUI-64 as directories are called by: with colons, hyphens, or dots between groups of four.
func parseMAC(s string) (string, bool) {
	mac, err := net.ParseMAC(s)
	if err != nil || len(mac) > 8 { // InfiniBand's
		return "", false
	}
	return hex.EncodeToString(mac), true
}

// traced is the end of a name that Smee has made, with the trace of the boot (W3C traceparent).
var traced = regexp.MustCompile(`-00-[0-9a-fA-F]{32}-[0-9a-fA-F]{16}-[0-9a-fA-F]{2}$`)

// untraced takes the trace off a name.
func untraced(name string) (string, bool) {
	at := traced.FindStringIndex(name)
	if at == nil || at[0] == 0 {
		return "", false
	}
	return name[:at[0]], true
}

// notLoader is in no loader's name.
var notLoader = regexp.MustCompile(`^\.|[^A-Za-z0-9._+~-]`)

// LoaderName is the name of the loader that is asked for as Smee offers it: below a machine's MAC, with a trace, or
// plain. It reports false for every other name.
func LoaderName(asked string) (string, bool) {
	name := strings.TrimLeft(asked, "/")
	if first, rest, deeper := strings.Cut(name, "/"); deeper {
		if _, ok := parseMAC(first); !ok {
			return "", false
		}
		name = rest
	}
	if plain, ok := untraced(name); ok {
		if strings.Contains(name[len(plain):], strings.Repeat("0", 16)) {
			return "", false // no trace, as Smee reads it: its file has the whole name
		}
		name = plain
	}
	return name, len(name) < 128 && isLoader(name) && !notLoader.MatchString(name)
}

// isLoader reports whether firmware starts a file of this name. A machine's directory with such a file is complete:
// what is not in it is not taken from the common files, which would mix two chains of loaders.
func isLoader(name string) bool {
	switch path.Ext(lower(name)) {
	case ".efi", ".kpxe", ".pxe", ".0", ".elf":
		return true
	}
	return false
}
