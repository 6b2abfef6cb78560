package main

import (
	"archive/tar"
	"io"
	"io/fs"
)

// tarball writes a directory as "make images" does.
func tarball(out io.Writer, directory fs.FS) error {
	w := tar.NewWriter(out)
	if err := w.AddFS(directory); err != nil {
		return err
	}
	return w.Close()
}
