// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package interpreter

import (
	"io/fs"
	"mime"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/stream"
)

// Bounds of a look at a directory: files of a cell are a convenience and must not cost its time.
const (
	maxSeen    = 4000
	maxDepth   = 6
	maxChanges = 200
	maxTime    = 4 * time.Millisecond
)

// clockStep is how much older than the moment of a change its time on disk may look.
const clockStep = 10 * time.Millisecond

// skipped directories hold what tools make for themselves, those with a prefix in /tmp.
var (
	skipped         = []string{"node_modules", "__pycache__", "site-packages", "venv"}
	skippedPrefixes = []string{".", "casulo-go-", "go-build", "hsperfdata_"}
)

// stamp is what changes when a file does.
type stamp struct {
	inode     uint64
	size      int64
	changedAt syscall.Timespec
}

// sight is what a directory held at one moment.
type sight struct {
	dir     string
	files   map[string]stamp
	partial bool
	at      time.Time
}

// look remembers the files below a directory, the nearest first. Of the root only its own files
// count, for everything that runs makes files somewhere below it.
func look(dir string) *sight {
	seen := &sight{dir: dir, files: map[string]stamp{}, at: time.Now()}
	depth := maxDepth
	if dir == "/" {
		depth = 1
	}
	for level := []string{dir}; len(level) > 0 && depth > 0; depth-- {
		var below []string
		for _, each := range level {
			below = append(below, seen.read(each)...)
		}
		level = below
	}
	return seen
}

// read adds the files of one directory and returns the directories in it.
func (s *sight) read(dir string) (below []string) {
	opened, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		// What cannot be read is not listed.
		return nil
	}
	defer opened.Close()
	for {
		entries, err := opened.ReadDir(256)
		for _, entry := range entries {
			name := filepath.Join(dir, entry.Name())
			if entry.Type().IsRegular() {
				s.add(name, entry)
			} else if entry.IsDir() && !isSkipped(entry.Name()) {
				below = append(below, name)
			}
		}
		if err != nil {
			return below
		}
		if len(s.files) >= maxSeen || time.Since(s.at) > maxTime {
			s.partial = true
			return nil
		}
	}
}

func isSkipped(name string) bool {
	return slices.Contains(skipped, name) ||
		slices.ContainsFunc(skippedPrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

func (s *sight) add(name string, entry fs.DirEntry) {
	info, err := entry.Info()
	if err != nil {
		return
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		s.files[name] = stamp{stat.Ino, stat.Size, stat.Ctim}
	}
}

// changes lists what is new or different now, below the same directory and below where the code
// went meanwhile.
func (s *sight) changes(dir string) (files []stream.File, truncated bool) {
	now := look(s.dir)
	files = now.differences(s)
	if dir != s.dir && !strings.HasPrefix(dir, s.dir+"/") {
		files = append(files, look(dir).since(s.at)...)
	}
	truncated = now.partial || len(files) > maxChanges
	return files[:min(len(files), maxChanges)], truncated
}

// since lists what changed after a moment, for a directory of which nothing else is known.
func (s *sight) since(at time.Time) []stream.File {
	return s.differences(&sight{partial: true, at: at})
}

// before reports whether the file is as it was at that moment.
func (s stamp) before(at time.Time) bool {
	return time.Unix(s.changedAt.Unix()).Before(at.Add(-clockStep))
}

func (s *sight) differences(before *sight) []stream.File {
	var files []stream.File
	for name, current := range s.files {
		old, existed := before.files[name]
		if existed && old == current || !existed && before.partial && current.before(before.at) {
			continue
		}
		change := "created"
		if existed {
			change = "modified"
		}
		files = append(files, stream.File{Path: name, Size: current.size, MIME: typeOf(name), Change: change})
	}
	slices.SortFunc(files, func(a, b stream.File) int { return strings.Compare(a.Path, b.Path) })
	return files
}

// knownTypes are those that an image without a table of its own should know all the same.
var knownTypes = map[string]string{
	".csv": "text/csv", ".md": "text/markdown", ".txt": "text/plain", ".py": "text/x-python",
	".parquet": "application/vnd.apache.parquet", ".ipynb": "application/x-ipynb+json",
	".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
	".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
	".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
	".zip":  "application/zip", ".gz": "application/gzip", ".tar": "application/x-tar", ".mp4": "video/mp4",
	".mp3": "audio/mpeg", ".wav": "audio/wav", ".db": "application/vnd.sqlite3", ".yaml": "application/yaml",
}

func typeOf(name string) string {
	extension := strings.ToLower(filepath.Ext(name))
	if known := knownTypes[extension]; known != "" {
		return known
	}
	if known := mime.TypeByExtension(extension); known != "" {
		known, _, _ = strings.Cut(known, ";")
		return known
	}
	return "application/octet-stream"
}
