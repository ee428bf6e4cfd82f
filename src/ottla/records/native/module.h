/* What the files with Python's side of things share. */
#ifndef OTTLA_MODULE_H
#define OTTLA_MODULE_H

#include <Python.h>

#include "records.h"

typedef struct {
    PyObject *invalid_batch;
    PyObject *key_offsets; /* the type */
} module_state;

extern PyType_Spec key_offsets_spec;

/* Raise what is wrong; 0. */
int refuse(PyObject *module, const failure *why);

PyObject *py_index_chunk(PyObject *module, PyObject *args);
PyObject *py_index_records(PyObject *module, PyObject *args);
PyObject *py_filter_chunk(PyObject *module, PyObject *args);
PyObject *py_filter_records(PyObject *module, PyObject *args);
PyObject *py_outline(PyObject *module, PyObject *args);
PyObject *py_fill_columns(PyObject *module, PyObject *args);
PyObject *py_route(PyObject *module, PyObject *args);
PyObject *py_sort_by_lane(PyObject *module, PyObject *args);
PyObject *py_encode(PyObject *module, PyObject *args);

#endif
