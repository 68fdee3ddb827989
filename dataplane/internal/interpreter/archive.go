// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package interpreter

import (
	"archive/zip"
	"bytes"
	"io/fs"
	"path"
)

// pythonArchive packs the Python driver as Python can import it: uncompressed, because it is read
// from memory, module by module.
func pythonArchive() ([]byte, error) {
	const root = "drivers/python"
	var content bytes.Buffer
	archive := zip.NewWriter(&content)
	modules, err := fs.Glob(embedded, root+"/casulo_python/*.py")
	if err != nil {
		return nil, err
	}
	for _, name := range modules {
		text, err := embedded.ReadFile(name)
		if err != nil {
			return nil, err
		}
		member, err := archive.CreateHeader(&zip.FileHeader{Name: path.Join("casulo_python", path.Base(name))})
		if err != nil {
			return nil, err
		}
		if _, err := member.Write(text); err != nil {
			return nil, err
		}
	}
	err = archive.Close()
	return content.Bytes(), err
}
