# cmake -DSOURCE=DIR -DOUTPUT=FILE -P HearthCommit.cmake: a header with the commit that is checked out in SOURCE. Run at
# every build; the file changes only with the commit, so that nothing else is built again.
set(commit unknown)
find_program(GIT git)
if(GIT)
    # A source archive unpacked inside another project's repository has no commit of its own.
    execute_process(COMMAND ${GIT} rev-parse --show-toplevel WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE top
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    file(REAL_PATH "${SOURCE}" source)
    if(top STREQUAL source)
        execute_process(COMMAND ${GIT} describe --always --dirty WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE described
                        OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
        if(NOT failed AND described)
            set(commit ${described})
        endif()
    endif()
endif()
set(text "#define HEARTH_COMMIT \"${commit}\"\n")
if(EXISTS ${OUTPUT})
    file(READ ${OUTPUT} before)
endif()
if(NOT "${before}" STREQUAL "${text}")
    file(WRITE ${OUTPUT} "${text}")
endif()
