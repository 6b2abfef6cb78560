// Package linux reads in the begin of kernels and initrds which release they are of.
package linux

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
)

// KernelBegin is how many bytes of a kernel for x86 are enough for its release: those of its setup code.
const KernelBegin = 33 << 10

// Release is what uname -r says on a kernel for x86 (Linux's boot protocol, field kernel_version); empty: it is another
// kernel, or one that does not say.
func Release(kernel []byte) string {
	const magicAt, versionAt, base = 0x202, 0x20e, 0x200
	if len(kernel) < versionAt+2 || string(kernel[magicAt:magicAt+4]) != "HdrS" {
		return ""
	}
	at := int(binary.LittleEndian.Uint16(kernel[versionAt:]))
	if at == 0 || base+at >= len(kernel) {
		return ""
	}
	text, _, ended := bytes.Cut(kernel[base+at:], []byte{0})
	words := strings.Fields(string(text))
	if !ended || len(words) == 0 {
		return ""
	}
	return words[0]
}

// Modules are the releases that an initrd has modules for, as far as its begin says. More tells that with more of it
// there might be others: it is an archive (cpio, newc), plain or packed by gzip, and it goes on.
func Modules(initrd []byte) (releases []string, more bool) {
	// What a packed archive may grow to.
	const most = 256 << 20
	err := archives(bufio.NewReader(bytes.NewReader(initrd)), most, func(name string) {
		parts := strings.Split(strings.TrimPrefix(strings.TrimPrefix(name, "./"), "/"), "/")
		if parts[0] == "usr" {
			parts = parts[1:]
		}
		if len(parts) > 3 && parts[0] == "lib" && parts[1] == "modules" && !slices.Contains(releases, parts[2]) {
			releases = append(releases, parts[2])
		}
	})
	return releases, errors.Is(err, io.ErrUnexpectedEOF)
}

// archives reads the archives in a stream, which follow each other with zeros between.
func archives(r *bufio.Reader, most int64, entry func(name string)) error {
	for {
		magic, err := r.Peek(2)
		switch {
		case errors.Is(err, io.EOF) && len(magic) == 0:
			return nil
		case err != nil:
			return io.ErrUnexpectedEOF
		case magic[0] == 0:
			_, _ = r.Discard(1)
		case magic[0] == 0x1f && magic[1] == 0x8b:
			packed, err := gzip.NewReader(r)
			if err != nil {
				return err
			}
			packed.Multistream(false)
			if err := archives(bufio.NewReader(io.LimitReader(packed, most)), most, entry); err != nil {
				return err
			}
		case magic[0] == '0' && magic[1] == '7':
			if err := archive(r, entry); err != nil {
				return err
			}
		default:
			return errors.ErrUnsupported
		}
	}
}

// archive reads an archive of cpio's format newc up to its trailer.
func archive(r *bufio.Reader, entry func(name string)) error {
	const header, sizeAt, nameAt, longest = 110, 54, 94, 4096
	for {
		head := make([]byte, header)
		if _, err := io.ReadFull(r, head); err != nil {
			return io.ErrUnexpectedEOF
		}
		size, err := strconv.ParseInt(string(head[sizeAt:sizeAt+8]), 16, 64)
		length, again := strconv.ParseInt(string(head[nameAt:nameAt+8]), 16, 64)
		if err != nil || again != nil || !bytes.HasPrefix(head, []byte("07070")) || length < 1 || length > longest {
			return errors.ErrUnsupported
		}
		padded := make([]byte, (header+length+3)&^3-header)
		if _, err := io.ReadFull(r, padded); err != nil {
			return io.ErrUnexpectedEOF
		}
		name := string(padded[:length-1])
		if name == "TRAILER!!!" {
			return nil
		}
		entry(name)
		if _, err := io.CopyN(io.Discard, r, (size+3)&^3); err != nil {
			return io.ErrUnexpectedEOF
		}
	}
}
