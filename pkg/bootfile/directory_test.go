package bootfile

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/artifacts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// release makes a generation as fetch does, of files below "boot" whose content is their release's name.
func release(t *testing.T, volume, name string, listed ...string) {
	t.Helper()
	manifest := &artifacts.Manifest{Files: map[string]artifacts.File{"vmlinuz": {Size: 1}}}
	for _, file := range listed {
		path := filepath.Join(volume, name, "boot", file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
		manifest.Files["boot/"+file] = artifacts.File{Size: int64(len(name))}
	}
	text, err := manifest.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(volume, name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(volume, name, artifacts.ManifestName), text, 0o644); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(volume, "current")
	_ = os.Remove(link + ".new")
	if err := errors.Join(os.Symlink(name, link+".new"), os.Rename(link+".new", link)); err != nil {
		t.Fatal(err)
	}
}

// content reads a file whole, waiting for the disk where that is needed.
func content(t *testing.T, f *File) (string, error) {
	t.Helper()
	b := make([]byte, f.Size())
	err := f.Read(b, 0)
	if errors.Is(err, ErrWait) {
		done := make(chan error)
		f.Load(b, 0, func(err error) { done <- err })
		err = <-done
	}
	return string(b), err
}

func (d *Directory) text(t *testing.T, name string) string {
	t.Helper()
	f := d.Find(name)
	if f == nil {
		return "none"
	}
	defer f.Close()
	text, err := content(t, f)
	if err != nil {
		return "unreadable"
	}
	return text
}

func TestReleases(t *testing.T) {
	volume := t.TempDir()
	d := New(Config{Directory: filepath.Join(volume, "current"), Path: "boot/"})
	now := time.Now()
	if d.look(now); d.Ready() {
		t.Error("ready without a directory")
	}
	release(t, volume, "first", "shim.efi", "grub.efi", "gone.efi")
	if d.look(now); !d.Ready() {
		t.Fatal("not ready with a directory")
	}
	if got := d.text(t, "shim.efi"); got != "first" {
		t.Errorf("got %q", got)
	}
	held := d.Find("grub.efi")
	if _, err := content(t, held); err != nil {
		t.Fatal(err)
	}
	release(t, volume, "second!", "shim.efi", "grub.efi", "damaged.efi", "taken.efi")
	damage := filepath.Join(volume, "second!", "boot")
	if err := errors.Join(os.WriteFile(damage+"/damaged.efi", []byte("short"), 0o644),
		os.Remove(damage+"/taken.efi")); err != nil {
		t.Fatal(err)
	}
	d.look(now)
	for _, tt := range []struct{ id, file, want string }{
		{"F01", "grub.efi", "second!"},
		{"F01", "gone.efi", "none"},
		{"F04", "damaged.efi", "unreadable"},
		{"F04", "taken.efi", "unreadable"},
	} {
		if got := d.text(t, tt.file); got != tt.want {
			t.Errorf("%s: got %q of %s, want %q", tt.id, got, tt.file, tt.want)
		}
	}
	if text, err := content(t, held); text != "first" || err != nil {
		t.Errorf("a file that is held is %q, %v", text, err)
	}
	held.Close()
	release(t, volume, "third")
	if d.look(now); !d.Ready() || d.text(t, "shim.efi") != "none" {
		t.Error("a release without boot files has some, or is not ready")
	}
	d.Set(Config{})
	if d.text(t, "shim.efi") != "none" || !d.Ready() {
		t.Error("found where nothing is to be found")
	}
}

// Names follows the releases, and what is put there by hand.
func TestNamesFollowTheDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		volume := t.TempDir()
		n := NewNames(filepath.Join(volume, "current"), "boot")
		want := func(asked, want string) {
			t.Helper()
			if got, ok := n.Find(asked); ok != (want != "") || ok && got != want {
				t.Errorf("%s is %q, %t; want %q", asked, got, ok, want)
			}
		}
		want("/boot/X.EFI", "")
		release(t, volume, "first", "x.efi")
		time.Sleep(lookEvery)
		want("/boot/X.EFI", "boot/x.efi")
		release(t, volume, "second", "y.efi")
		time.Sleep(lookEvery)
		want("/boot/X.EFI", "")
		want(`\boot\Y.efi`, "boot/y.efi")

		dir := tree(t, "boot/x.efi")
		n = NewNames(dir, "boot")
		want("/boot/X.EFI", "boot/x.efi")
		if err := os.Rename(filepath.Join(dir, "boot", "x.efi"), filepath.Join(dir, "boot", "z.efi")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(listEvery)
		want("/boot/X.EFI", "")
		want("/boot/Z.EFI", "boot/z.efi")
	})
}

func TestRunFollowsTheSettings(t *testing.T) {
	d := New(Config{})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.Run(ctx)
	}()
	if !d.Ready() {
		t.Error("waits for nothing")
	}
	d.Set(Config{Directory: tree(t, "a/f", "b/f"), Path: "a"})
	testwait.Until(t, "found", func() bool { return d.text(t, "f") == "a/f" })
	d.Set(Config{Directory: tree(t, "b/f", "c"), Path: "."})
	testwait.Until(t, "found elsewhere", func() bool { return d.text(t, `\B\F`) == "b/f" })
	stop()
	<-done
}

// The name is a view of the datagram that asked: the next one overwrites it while the file is still being opened.
func TestFindDoesNotKeepTheName(t *testing.T) {
	d := New(Config{Directory: tree(t, "one", "two"), Path: "."})
	d.look(time.Now())
	datagram := []byte("one")
	for range 2 { // the first time the file is opened, and closed
		f := d.Find(unsafe.String(&datagram[0], len(datagram)))
		copy(datagram, "two")
		if got, err := content(t, f); got != "one" || err != nil || f.String() != "one" {
			t.Errorf("got %q of %q, %v", got, f, err)
		}
		f.Close()
		d.readers.Wait()
		copy(datagram, "one")
	}
}

// Many read one file by one descriptor, wherever they are in it.
func TestReadersShareAFile(t *testing.T) {
	dir := tree(t)
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	if err := os.WriteFile(filepath.Join(dir, "big"), want, 0o644); err != nil {
		t.Fatal(err)
	}
	d := New(Config{Directory: dir, Path: "."})
	d.look(time.Now())
	first := d.Find("big")
	second := d.Find("/BIG")
	if first != second {
		t.Error("two files where one is")
	}
	if text, err := content(t, first); text != string(want) || err != nil {
		t.Errorf("got %d bytes, %v", len(text), err)
	}
	first.Close()
	if text, err := content(t, second); text != string(want) || err != nil {
		t.Errorf("after the other one closed: got %d bytes, %v", len(text), err)
	}
	second.Close()
	d.readers.Wait()
	if first.opened.Load().Fd() != ^uintptr(0) {
		t.Error("the descriptor is open still")
	}
}
