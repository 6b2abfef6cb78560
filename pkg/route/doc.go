// Package route describes what stack-proxy serves: a table of routes, from a preset or from one YAML file.
//
// The package is data only. [Parse] reads a file strictly and reports every mistake with its line and field;
// [Preset] gives the built-in tables; pkg/proxy acts on them.
package route
