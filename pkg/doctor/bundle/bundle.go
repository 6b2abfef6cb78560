// Package bundle writes what a run of stack-doctor found into one file for a bug report: findings, settings, versions,
// logs that were given, and the packets. What looks like a secret is taken out, and how often is told.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Content is what goes into a bundle.
type Content struct {
	Report   any    // written as JSON
	Text     string // the same for people
	Settings map[string]string
	Versions string
	Logs     []string // paths of files
	Frames   *Recorder
}

// mostLog is how much of a log is taken, in bytes: its end.
const mostLog = 4 << 20

// Write makes a file that nobody else may read. It does not replace one.
func Write(path string, c Content) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("failed to make bundle: %w", err)
	}
	err = c.write(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(fmt.Errorf("failed to write bundle: %w", err), os.Remove(path))
	}
	return nil
}

type file struct {
	name string
	text []byte
}

func (c *Content) write(w io.Writer) error {
	var clean redactor
	var report bytes.Buffer
	encoder := json.NewEncoder(&report)
	encoder.SetEscapeHTML(false) // or secrets look otherwise
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(c.Report); err != nil {
		return err
	}
	var settings strings.Builder
	for _, name := range slices.Sorted(mapKeys(c.Settings)) {
		fmt.Fprintf(&settings, "%s=%s\n", name, c.Settings[name])
	}
	files := []file{
		{"report.json", clean.text(report.Bytes())},
		{"report.txt", clean.text([]byte(c.Text))},
		{"settings.txt", clean.text([]byte(settings.String()))},
		{"versions.txt", []byte(c.Versions)},
	}
	for i, path := range c.Logs {
		text, err := end(path)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("logs/%d-%s", i+1, plainName(filepath.Base(path)))
		if !readable(text) {
			clean.count("logs left out, since they are no plain text: " + name)
			continue
		}
		files = append(files, file{name, clean.text(text)})
	}
	if c.Frames != nil {
		var pcap bytes.Buffer
		if err := c.Frames.write(&pcap); err != nil {
			return err
		}
		files = append(files, file{"frames.pcap", pcap.Bytes()})
		clean.add("DHCP options and URLs in packets", c.Frames.taken())
	}
	files = append(files, file{"taken-out.txt", clean.told()})
	return archive(w, files)
}

func mapKeys(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// end reads the last part of a file.
func end(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("failed to read log: %w", err)
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil && info.Size() > mostLog {
		if _, err := f.Seek(-mostLog, io.SeekEnd); err != nil {
			return nil, fmt.Errorf("failed to read log: %w", err)
		}
	}
	text, err := io.ReadAll(io.LimitReader(f, mostLog))
	if err != nil {
		return nil, fmt.Errorf("failed to read log: %w", err)
	}
	return text, nil
}

// readable tells text that can be looked through: packed files and UTF-16 hide what is in them.
func readable(text []byte) bool {
	return !bytes.ContainsRune(text, 0) && !bytes.HasPrefix(text, []byte{0x1f, 0x8b}) &&
		!bytes.HasPrefix(text, []byte("PK")) && !bytes.HasPrefix(text, []byte("\xfd7zXZ"))
}

// plainName is a file's name without anything that leads elsewhere.
func plainName(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, name)
}

func archive(w io.Writer, files []file) error {
	packed := gzip.NewWriter(w)
	out := tar.NewWriter(packed)
	for _, f := range files {
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: "stack-doctor/" + f.name, Mode: 0o600, Size: int64(len(f.text)), ModTime: time.Now(),
		}
		if err := out.WriteHeader(header); err != nil {
			return err
		}
		if _, err := out.Write(f.text); err != nil {
			return err
		}
	}
	return errors.Join(out.Close(), packed.Close())
}
