// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/plain"
)

// Unfinished files have a name that tells them from everything else: ".casulo-part-", a mark of the sandbox, and a
// random rest. They lie next to their target, because only there a rename can put them in place. The journal is a
// text file with one quoted directory per line, written before the first unfinished file of a directory is made and
// emptied whenever no unfinished file is left. What the next start finds in it are the directories, and only those,
// where an upload was cut off; they are searched for leftovers.
const (
	partPrefix  = ".casulo-part-"
	journalName = ".casulo-uploads"
	lineDir     = "dir "
	lineTree    = "tree "

	// journalLimit bounds what is read of a journal: programs of the sandbox may have written into it.
	journalLimit = 16 << 20
)

type journal struct {
	mu     sync.Mutex
	file   *os.File // nil when no state directory can be written: uploads work, leftovers stay
	prefix string   // of unfinished files of this sandbox
	noted  map[string]bool
	active int
}

// openJournal uses the first directory that can be written to.
func openJournal(dirs []string, sandboxID string) *journal {
	sum := sha256.Sum256([]byte(sandboxID))
	mark := hex.EncodeToString(sum[:4])
	j := &journal{prefix: partPrefix + mark + "-", noted: map[string]bool{}}
	for _, dir := range dirs {
		if os.MkdirAll(dir, 0o755) != nil {
			continue
		}
		name := filepath.Join(dir, journalName+"-"+mark)
		file, err := plain.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
		if err == nil {
			j.file = file
			return j
		}
	}
	log.Printf("event=no_upload_journal dirs=%q", dirs)
	return j
}

// newName makes a name for an unfinished file.
func (j *journal) newName() string { return j.prefix + strings.ToLower(rand.Text()) }

// begin notes a directory before an unfinished file is made in it; end must follow.
func (j *journal) begin(dir string) error { return j.note(lineDir + strconv.Quote(dir)) }

// beginTree is begin for unfinished files anywhere below dir.
func (j *journal) beginTree(dir string) error { return j.note(lineTree + strconv.Quote(dir)) }

func (j *journal) note(line string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file != nil && !j.noted[line] {
		if _, err := j.file.WriteString(line + "\n"); err != nil {
			return fmt.Errorf("journal of uploads: %w", err)
		}
		j.noted[line] = true
	}
	j.active++
	return nil
}

// end is called when the unfinished file is in place or gone.
func (j *journal) end() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.active--; j.active == 0 && j.file != nil {
		j.reset()
	}
}

func (j *journal) reset() {
	if err := j.file.Truncate(0); err != nil {
		log.Printf("event=upload_journal_not_emptied error=%q", err)
		return
	}
	clear(j.noted)
}

// cleanLeftovers deletes unfinished files of an earlier run.
func (j *journal) cleanLeftovers() {
	if j.file == nil {
		return
	}
	lines := bufio.NewScanner(io.LimitReader(j.file, journalLimit))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		for kind, clean := range map[string]func(string) error{lineDir: j.cleanDirectory, lineTree: j.cleanTree} {
			quoted, ok := strings.CutPrefix(lines.Text(), kind)
			dir, err := strconv.Unquote(quoted)
			if !ok || err != nil {
				continue
			}
			if err := clean(dir); ignoreMissing(err) != nil {
				log.Printf("event=leftovers_not_deleted dir=%q error=%q", dir, err)
			}
		}
	}
	j.reset()
}

func (j *journal) cleanDirectory(dir string) error {
	return j.clean(dir, func(visit) bool { return false })
}

func (j *journal) cleanTree(dir string) error {
	return j.clean(dir, func(v visit) bool { return !v.status.mountRoot })
}

func (j *journal) clean(dir string, descend func(visit) bool) error {
	fd, err := openAt(unix.AT_FDCWD, dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	return walk(context.Background(), fd, visitor{enter: func(v visit) (bool, error) {
		if strings.HasPrefix(v.name, j.prefix) {
			return false, removeTree(context.Background(), filepath.Join(dir, v.relative))
		}
		return descend(v), nil
	}})
}
