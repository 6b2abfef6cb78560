package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// warnings are the messages that the programs log as warnings, errors, or by a level that is found at run time, and
// where: the constant argument of a logger's Warn and Error, of Log and LogAttrs behind context and level, and of
// warn and WarnAt, which log at times only, behind the time.
func warnings(t *testing.T) map[string]token.Position {
	t.Helper()
	argument := map[string]int{"Warn": 0, "Error": 0, "warn": 1, "WarnAt": 1, "Log": 2, "LogAttrs": 2}
	found, files := map[string]token.Position{}, token.NewFileSet()
	look := func(node ast.Node) bool {
		call, ok := node.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if i, ok := argument[method.Sel.Name]; ok && i < len(call.Args) {
			if message, ok := call.Args[i].(*ast.BasicLit); ok && message.Kind == token.STRING {
				text, _ := strconv.Unquote(message.Value)
				found[text] = files.Position(message.Pos())
			}
		}
		return true
	}
	for _, top := range []string{"../../cmd", "../../internal", "../../pkg"} {
		err := filepath.WalkDir(top, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err == nil {
				ast.Inspect(file, look)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// Whoever reads a warning in the log finds it in the documents, with what to do.
func TestWarningsAreDocumented(t *testing.T) {
	var paths []string
	for _, pattern := range []string{"../../docs/*.md", "../../docs/reference/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, found...)
	}
	var documents strings.Builder
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		documents.WriteString(strings.Join(strings.Fields(string(text)), " ")) // wherever a line ends
	}
	found := warnings(t)
	if len(found) < 50 {
		t.Errorf("only %d messages were found", len(found))
	}
	for _, message := range slices.Sorted(maps.Keys(found)) {
		if !strings.Contains(documents.String(), "`"+message+"`") {
			t.Errorf("%s: %q is in none of docs/*.md and docs/reference/*.md", found[message], message)
		}
	}
}
