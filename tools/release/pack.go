package main

import (
	"archive/tar"
	"compress/gzip"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// packChart writes the chart's directory as the archive that "helm package" would make of it, but with the same bytes each
// time: the files in order, all of one time, one mode and nobody's. The archive's own time is made the same, since "helm push"
// writes it into the manifest.
func packChart(directory, archive string, when time.Time) error {
	file, err := os.Create(archive)
	if err != nil {
		return err
	}
	compressed := gzip.NewWriter(file)
	err = writeTar(compressed, os.DirFS(directory), "stack", when)
	for _, close := range []func() error{compressed.Close, file.Close} {
		if closeErr := close(); err == nil {
			err = closeErr
		}
	}
	if err != nil {
		return err
	}
	return os.Chtimes(archive, when, when)
}

// writeTar writes the regular files of a directory, below top.
func writeTar(out io.Writer, from fs.FS, top string, when time.Time) error {
	w := tar.NewWriter(out)
	if err := fs.WalkDir(from, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(from, name)
		if err != nil {
			return err
		}
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: path.Join(top, name), Mode: 0o644, Size: int64(len(text)),
			ModTime: when, Format: tar.FormatPAX,
		}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	}); err != nil {
		return err
	}
	return w.Close()
}

// dropIgnored removes from a copy of the chart what its .helmignore names, as "helm package" leaves it out.
func dropIgnored(directory string) error {
	text, err := os.ReadFile(filepath.Join(directory, ".helmignore"))
	if err != nil {
		return err
	}
	var patterns []string
	for _, line := range strings.Split(string(text), "\n") {
		if line = strings.Trim(strings.TrimSpace(line), "/"); line != "" && !strings.HasPrefix(line, "#") {
			patterns = append(patterns, line)
		}
	}
	return filepath.WalkDir(directory, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == directory {
			return err
		}
		for _, pattern := range patterns {
			if matched, err := filepath.Match(pattern, entry.Name()); err != nil || !matched {
				continue
			}
			if err := os.RemoveAll(name); err != nil || !entry.IsDir() {
				return err
			}
			return fs.SkipDir
		}
		return nil
	})
}
