package report

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tinkerbell/stack/test/e2e/program"
)

// Judge prints what a soak has found, and writes it into a directory: the result as result.json, the text for people as
// result.md. It is an error when something went wrong.
func Judge(dir string, result any, text string, wrong int) error {
	fmt.Println(text)
	err := errors.Join(program.WriteJSON(filepath.Join(dir, "result.json"), result),
		os.WriteFile(filepath.Join(dir, "result.md"), []byte(text), 0o644))
	if err != nil {
		return fmt.Errorf("failed to write result: %w", err)
	}
	if wrong > 0 {
		return fmt.Errorf("%d things went wrong, see %s", wrong, dir)
	}
	return nil
}

// Directory makes a directory of results, and is its absolute path.
func Directory(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return "", fmt.Errorf("failed to make directory of results: %w", err)
	}
	return path, nil
}
